"""Dense retrieval: passages encoded in shards, and a FAISS index that ranks them by inner product."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import faiss
import numpy as np

from core.artifacts import write_json
from core.cache import build_once
from core.errors import InputError, first_line
from core.progress import Progress, log
from core.records import Hit
from core.settings import RetrievalSettings
from core.stage_runner import batched
from retrieval.collection import Collection
from retrieval.encoder import Encoder

SHARD = 8192  # passages; an interrupted process loses at most one shard
HNSW_LINKS, HNSW_CONSTRUCTION, HNSW_SEARCH = 32, 200, 128  # neighbors; candidates during construction and search
IVF_MIN_TRAINING, IVF_MAX_TRAINING = 39, 128  # training vectors per list; faiss warns below 39


class DenseRetriever:
    """Ranks a collection by the inner product of vectors.

    Args:
        encoder: encodes queries.
        index: the vectors of the passages in collection order.
        collection: the passages.
    """

    def __init__(self, encoder: Encoder, index: faiss.Index, collection: Collection):
        self.encoder, self.index, self.collection = encoder, index, collection

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The `k` nearest documents per query; none for a blank query."""
        texts = [query for query in queries if query.strip()]
        if not texts:
            return [[] for _ in queries]
        vectors = self.encoder.encode_queries(texts)
        scores, rows = self.index.search(vectors, min(k, self.index.ntotal))
        order = np.lexsort((rows, -scores))  # ties in collection order
        scores, rows = np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)
        valid = rows >= 0  # an approximate index may return fewer than k
        ids = iter(self.collection.ids(rows[valid].tolist()))
        lists = (
            [Hit(next(ids), float(score)) for score in row[keep]] for row, keep in zip(scores, valid, strict=True)
        )
        return [next(lists) if query.strip() else [] for query in queries]


def build_dense(settings: RetrievalSettings, collection: Collection) -> DenseRetriever:
    """Build the dense engine of a collection; vectors and index are computed unless they are in the cache.

    Raises:
        InputError: the encoder cannot be loaded.
    """
    encoder = Encoder(settings)
    return DenseRetriever(encoder, load_index(settings.faiss, collection, encoder), collection)


def embeddings_folder(collection: Collection, encoder: Encoder) -> Path:
    """Cache folder of the vectors of a collection and an encoder: `dense-<hash of the encoder's config>`."""
    key = hashlib.sha256(json.dumps(encoder.config, sort_keys=True).encode()).hexdigest()[:16]
    return collection.folder / f"dense-{key}"


def encode_corpus(collection: Collection, encoder: Encoder, shard_size: int = SHARD) -> list[Path]:
    """Encode the passages of a collection into shards; existing shards are kept.

    Shard n contains the rows from n x `shard_size` on, float32 [rows, dimension], in `shard-<n>.npy`. Processes of one
    or several runs share the work: each takes the next shard that no other process has started, and finally waits for
    the shards that other processes have not finished.

    Returns:
        The files of the shards, in order.
    """
    folder, total = embeddings_folder(collection, encoder), len(collection)
    if not (folder / "plan.json").exists():
        write_json(folder / "plan.json", {"collection": collection.identity, **encoder.config})
    shards = [folder / f"shard-{number:05d}.npy" for number in range(-(-total // shard_size))]
    missing = [number for number, shard in enumerate(shards) if not shard.exists()]
    if len(missing) < len(shards):
        log.info("embeddings: %d of %d shards exist", len(shards) - len(missing), len(shards))
    rows = sum(min(shard_size, total - number * shard_size) for number in missing)
    with Progress("embeddings", rows, "passages") as progress:
        for wait in (False, True):  # the second pass encodes shards of processes that were killed
            if all(shard.exists() for shard in shards):
                break
            texts = batched((passage.content for passage in collection.passages()), shard_size)
            for shard, batch in zip(shards, texts, strict=True):
                if build_once(shard, lambda partial, batch=batch: save_vectors(partial, encoder, batch), wait):
                    progress.advance(len(batch))
    return shards


def save_vectors(file: Path, encoder: Encoder, texts: Sequence[str]) -> None:
    """Encode passages and write their vectors."""
    with file.open("wb") as handle:
        np.save(handle, encoder.encode_passages(texts), allow_pickle=False)


def load_shard(file: Path) -> np.ndarray:
    """The vectors of a shard, memory-mapped."""
    try:
        return np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{file} is damaged ({error}); delete it and rerun the command.") from error


def load_index(kind: str, collection: Collection, encoder: Encoder, shard_size: int = SHARD) -> faiss.Index:
    """Load the memory-mapped FAISS index of a collection; index and vectors are built unless they are in the cache.

    Raises:
        InputError: the file of the index or of a shard is damaged.
    """
    file = embeddings_folder(collection, encoder) / f"{kind}.faiss"
    if not file.exists():
        shards = encode_corpus(collection, encoder, shard_size)
        log.info("index: %s over %d vectors -> %s", kind, len(collection), file)
        build_once(file, lambda partial: faiss.write_index(build_index(kind, shards, len(collection)), str(partial)))
    try:
        return faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise InputError(f"{file} is damaged ({first_line(error)}); delete it and rerun the command.") from error


def build_index(kind: str, shards: Sequence[Path], total: int) -> faiss.Index:
    """Build an index of vectors.

    IVF has about 4 sqrt(n) lists; a query searches 1 in 32 of them, but at least 16. HNSW and IVF expect normalized
    vectors; their recall is lower with others.

    Args:
        kind: `flat` (exact), `ivf` (searches the nearest clusters) or `hnsw` (walks a graph).
        shards: files of float32 [rows, dimension], in order.
        total: number of rows of all shards.

    Raises:
        InputError: a shard is damaged, or the shards do not have `total` rows.
    """
    dimension = load_shard(shards[0]).shape[1]
    if kind == "flat":
        index = faiss.IndexFlatIP(dimension)
    elif kind == "hnsw":
        index = faiss.IndexHNSWFlat(dimension, HNSW_LINKS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction, index.hnsw.efSearch = HNSW_CONSTRUCTION, HNSW_SEARCH
    else:
        lists = max(1, min(round(4 * total**0.5), total // IVF_MIN_TRAINING))
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(dimension), dimension, lists, faiss.METRIC_INNER_PRODUCT)
        index.nprobe = min(lists, max(16, lists // 32))
        step = max(1, -(-total // (lists * IVF_MAX_TRAINING)))
        index.train(np.concatenate([load_shard(shard)[::step] for shard in shards]))
    for shard in shards:
        index.add(load_shard(shard))
    if index.ntotal != total:
        raise InputError(
            f"{shards[0].parent}: the shards have {index.ntotal} rows instead of {total}; delete them and rerun the "
            "command."
        )
    return index
