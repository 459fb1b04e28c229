"""Dense retrieval: an encoder's vectors, ranked by inner product with FAISS."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from filelock import FileLock

from core.errors import InputError, first_line
from core.records import Hit
from core.runtime import log
from core.settings import RetrievalSettings
from retrieval.embeddings import SHARD, TextEncoder, embed, folder_of

if TYPE_CHECKING:
    import faiss

    from retrieval.collection import Collection

LINKS, BUILD_BREADTH, SEARCH_BREADTH = 32, 200, 128  # HNSW: neighbours, and candidates while building and searching
PER_LIST = 39  # IVF: least vectors per list to learn the lists from, faiss' own bound
SAMPLE = 128  # IVF: vectors per list that the lists are learnt from at most


class DenseRetriever:
    """A collection ranked by the inner product of vectors.

    Args:
        encoder: texts to vectors.
        index: the vectors of the passages, in collection order.
        ids_of: rows -> document ids.
    """

    def __init__(
        self, encoder: TextEncoder, index: "faiss.Index | None", ids_of: Callable[[Sequence[int]], list[str]]
    ):
        self.encoder, self.index, self.ids_of = encoder, index, ids_of

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The `k` documents nearest to each query; none for a query without text, or in an empty collection."""
        hits: list[list[Hit]] = [[] for _ in queries]
        asked = [i for i, query in enumerate(queries) if query.strip()]
        if not asked or self.index is None:
            return hits
        vectors = self.encoder.queries([queries[i] for i in asked])
        scores, rows = self.index.search(vectors, min(k, self.index.ntotal))
        order = np.lexsort((rows, -scores))  # equal scores in collection order
        scores, rows = (np.take_along_axis(found, order, 1) for found in (scores, rows))
        found = rows >= 0  # an approximate index may find fewer
        ids = iter(self.ids_of(rows[found].tolist()))
        for i, row_scores, row_found in zip(asked, scores, found, strict=True):
            hits[i] = [Hit(next(ids), float(score)) for score in row_scores[row_found]]
        return hits


def dense_retriever(settings: RetrievalSettings, collection: "Collection") -> DenseRetriever:
    """The retriever of the settings, from the collection's cache folder or made now.

    Raises:
        InputError: no encoder is named, it cannot be loaded, or faiss is not installed.
    """
    if not settings.encoder:
        raise InputError(
            "`retrieval.encoder` is not set; `dense` needs a folder or Hub id such as "
            "`--retrieval.encoder sentence-transformers/all-MiniLM-L6-v2`."
        )
    check_faiss()
    from retrieval.encoder_files import load_encoder

    encoder = load_encoder(
        settings.encoder, settings.pooling, settings.normalize, settings.query_prefix, settings.passage_prefix,
        settings.max_length, settings.dtype, settings.batch_tokens,
    )  # fmt: skip
    return DenseRetriever(encoder, load_index(settings.faiss, collection, encoder), collection.ids)


def check_faiss() -> None:
    """Make sure that faiss is there before hours are spent on vectors for it.

    Raises:
        InputError: it is not; says how to get it.
    """
    try:
        import faiss  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"`retrieval.engine dense` needs faiss ({error}): pip install 'query-rewriter-trainer[dense]'"
        ) from error


def load_index(kind: str, collection: "Collection", encoder: TextEncoder, shard: int = SHARD) -> "faiss.Index | None":
    """The index of a collection, memory-mapped; made once, with the vectors that it needs.

    Args:
        kind: `flat` compares with every vector; `ivf` with the nearest lists of them; `hnsw` walks a graph.
        collection: the passages.
        encoder: what makes the vectors.
        shard: rows per shard of vectors.

    Returns:
        The index; None for an empty collection.

    Raises:
        InputError: the index' file is damaged.
    """
    import faiss

    if not len(collection):
        return None
    file = folder_of(collection, encoder) / f"{kind}.faiss"
    if not file.exists():
        shards = embed(collection, encoder, shard)
        with FileLock(f"{file}.lock"):
            if not file.exists():
                log.info("index: %s over %d vectors -> %s", kind, len(collection), file)
                temporary = file.with_suffix(".part")
                faiss.write_index(make_index(kind, shards, len(collection)), str(temporary))
                temporary.replace(file)
    try:
        return faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise InputError(
            f"{file} is damaged ({first_line(error)}); delete it and start the same command again."
        ) from error


def make_index(kind: str, shards: Sequence[Path], total: int) -> "faiss.Index":
    """An index of the vectors of shards.

    IVF has about 4 sqrt(n) lists, of which a query looks into 1 in 32 and at least 16. HNSW and IVF expect vectors of
    one length; with others they find fewer of the best.

    Args:
        kind: `flat`, `ivf` or `hnsw`.
        shards: files of float32 [rows, width], in order.
        total: rows of all.
    """
    import faiss

    width = read(shards[0]).shape[1]
    if kind == "flat":
        index = faiss.IndexFlatIP(width)
    elif kind == "hnsw":
        index = faiss.IndexHNSWFlat(width, LINKS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction, index.hnsw.efSearch = BUILD_BREADTH, SEARCH_BREADTH
    else:
        lists = max(1, min(round(4 * total**0.5), total // PER_LIST))
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, lists, faiss.METRIC_INNER_PRODUCT)
        index.nprobe = min(lists, max(16, lists // 32))
        index.train(sample(shards, total, lists * SAMPLE))
    for shard in shards:
        index.add(read(shard))
    return index


def read(shard: Path) -> np.ndarray:
    """The vectors of a shard, memory-mapped."""
    return np.load(shard, mmap_mode="r", allow_pickle=False)


def sample(shards: Sequence[Path], total: int, most: int) -> np.ndarray:
    """At most so many vectors, spread evenly over all shards."""
    step = max(1, -(-total // most))
    return np.concatenate([read(shard)[::step] for shard in shards])
