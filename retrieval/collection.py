"""Collections: read once from their source, then opened by memory map.

`open_collection` keeps a checked copy of a source in the user's cache: `passages.arrow`, and two arrays that map the
hash of an id to its row. Indexes and embeddings of a collection are kept beside them, in `Collection.folder`.
"""

import hashlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from filelock import FileLock

from core.artifacts import read_json, write_json
from core.cache import cached_sha256, user_cache
from core.data_sources import DataSource, by_data_set, is_hub_name
from core.errors import InputError
from core.progress import log
from core.records import Passage
from retrieval.arrow_store import ArrowStore, write_passages
from retrieval.corpus import SKIP_HINT, SkipReport, hub_dataset, read_corpus

FORMAT = 1  # of the files in a collection's folder
LOG_EVERY = 1_000_000  # passages


class Collection:
    """A checked collection; open one with `open_collection`.

    Args:
        folder: its folder in the cache, which also keeps what is derived from the collection.
        identity: SHA-256 of the source, see `source_identity`.
    """

    def __init__(self, folder: Path, identity: str):
        self.folder, self.identity = folder, identity
        self._store = ArrowStore(folder / "passages.arrow")
        self._hashes = np.load(folder / "hashes.npy", mmap_mode="r", allow_pickle=False)
        self._rows = np.load(folder / "rows.npy", mmap_mode="r", allow_pickle=False)

    def __len__(self) -> int:
        return len(self._store)

    def __contains__(self, doc: str) -> bool:
        return self._row_of(doc) is not None

    def passages(self) -> Iterator[Passage]:
        """Every passage, in the order of the source."""
        return iter(self._store)

    def ids(self, rows: Sequence[int]) -> list[str]:
        """The ids of rows (positions in the order of the source, from 0)."""
        return self._store.ids(rows)

    def contents(self, ids: Sequence[str]) -> list[str]:
        """The text that the generator reads of each document: `Passage.content`.

        Raises:
            InputError: an id is not in the collection.
        """
        contents = []
        for doc in ids:
            row = self._row_of(doc)
            if row is None:
                raise InputError(
                    f"the document `{doc}` is not in the collection; what is ranked must have the ids of "
                    f"`data.corpus`."
                )
            contents.append(self._store.passage(row).content)
        return contents

    def _row_of(self, doc: str) -> int | None:
        key = np.uint64(id_hash(doc))
        start, end = (int(np.searchsorted(self._hashes, key, side)) for side in ("left", "right"))
        rows = self._rows[start:end].tolist()  # different ids may have the same hash
        return next((row for row in rows if self._store.id(row) == doc), None)


def open_collection(source: str, cache: Path | None = None, on_bad: Literal["stop", "skip"] = "stop") -> Collection:
    """Open a collection; on the first call its source is read and checked.

    Several processes may open a source at once: one reads it, the others wait.

    Args:
        source: a .jsonl or .tsv file (both also .gz), a .parquet file, or the name of a Hub data set.
        cache: folder of all collections; `user_cache()` by default.
        on_bad: raise for a record that cannot be used (`stop`), or skip and count it (`skip`).

    Raises:
        InputError: a record cannot be used (names file, line, field and value), an id is duplicated, or there is no
            passage.
    """
    cache = cache or user_cache()
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{cache}: collections cannot be kept there ({error.strerror}); name another folder with "
            f"`--retrieval.cache`."
        ) from error
    identity = source_identity(source, cache)
    folder = cache / identity[:16]
    folder.mkdir(parents=True, exist_ok=True)
    manifest = folder / "collection.json"
    with FileLock(folder / ".lock"):
        if not manifest.exists() or read_json(manifest)["format"] != FORMAT:
            skipped = SkipReport() if on_bad == "skip" else None
            count = import_source(source, folder, skipped)
            if source_identity(source, cache) != identity:
                raise InputError(f"{source}: the file changed while it was read; start again.")
            skipped = skipped or SkipReport()
            info = {"format": FORMAT, "source": source, "identity": identity, "passages": count}
            write_json(manifest, info | {"left_out": skipped.count, "first_left_out": skipped.first})
            log.info("collection: %d passages, %d records left out -> %s", count, skipped.count, folder)
    info = read_json(manifest)
    if info["left_out"] and on_bad == "stop":
        raise InputError(
            f"{info['first_left_out']} There are {info['left_out']} bad records in {info['source']}. {SKIP_HINT}"
        )
    return Collection(folder, identity)


def open_collections(
    sources: Sequence[DataSource], cache: str | None = None, on_bad: Literal["stop", "skip"] = "stop"
) -> dict[str, Collection]:
    """The collection of each data set, by the name of the set.

    Args:
        sources: the data sets.
        cache: folder of all collections; `user_cache()` when not given.
        on_bad: as for `open_collection`.
    """
    folder = Path(cache) if cache else None
    return {source.name: open_collection(source.corpus, folder, on_bad) for source in sources}


def identities_of(collections: Mapping[str, Collection]) -> str | dict[str, str]:
    """What a stage records of the collections that it reads."""
    return by_data_set({name: collection.identity for name, collection in collections.items()})


def source_identity(source: str, cache: Path) -> str:
    """What tells a source from others: the SHA-256 of a file, or that of the Arrow files of a Hub data set.

    Args:
        source: a file or the name of a Hub data set.
        cache: keeps the hashes, so that a file is read again only after a change.

    Raises:
        InputError: the file cannot be read, or the data set cannot be loaded.
    """
    path = Path(source)
    if not path.is_file() and is_hub_name(source):
        hashes = [cached_sha256(Path(file["filename"]), cache) for file in hub_dataset(source).cache_files]
        return hashlib.sha256("".join(hashes).encode()).hexdigest()
    try:
        path.stat()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}).") from error
    return cached_sha256(path, cache)


def id_hash(doc: str) -> int:
    """A 64-bit hash of a document id."""
    return int.from_bytes(hashlib.blake2b(doc.encode(errors="surrogatepass"), digest_size=8).digest(), "big")


def import_source(source: str, folder: Path, skipped: SkipReport | None) -> int:
    """Read a source into a folder of the cache.

    Args:
        source: the source.
        folder: where the files go; an interrupted import leaves a `.partial` file that the next one overwrites.
        skipped: collects the records that cannot be used; without it, the first of them raises.

    Returns:
        Number of passages.

    Raises:
        InputError: see `open_collection`.
    """
    log.info("collection: reading %s", source)
    hashes, line_numbers = array("Q"), array("Q")

    def passages() -> Iterator[Passage]:
        for number, passage in read_corpus(source, skipped):
            hashes.append(id_hash(passage.id))
            line_numbers.append(number)
            if len(hashes) % LOG_EVERY == 0:
                log.info("collection: %d passages read", len(hashes))
            yield passage

    partial = folder / "passages.partial"
    write_passages(partial, passages())
    keys, store = np.array(hashes, dtype=np.uint64), ArrowStore(partial)
    duplicates = duplicate_rows(keys, store)
    for row in duplicates:
        error = InputError(f"{source}:{line_numbers[row]}: the id `{store.id(row)}` stands twice; ids must be unique.")
        if skipped is None:
            raise InputError(f"{error} {SKIP_HINT}")
        skipped.add(error)
    if not len(keys):
        reason = f" {skipped.count} records were left out, the first: {skipped.first}" if skipped else ""
        raise InputError(f"{source}: the collection is empty; passages with `id` and `text` are expected.{reason}")
    if duplicates:
        keys = np.delete(keys, duplicates)
        unique, dropped = folder / "unique.partial", set(duplicates)
        write_passages(unique, (passage for row, passage in enumerate(store) if row not in dropped))
        unique.replace(partial)
    order = np.argsort(keys, kind="stable")
    np.save(folder / "hashes.npy", keys[order], allow_pickle=False)
    np.save(folder / "rows.npy", order, allow_pickle=False)
    partial.replace(folder / "passages.arrow")
    return len(keys)


def duplicate_rows(hashes: np.ndarray, store: ArrowStore) -> list[int]:
    """Rows whose id is that of an earlier row, ascending.

    Args:
        hashes: [passages] the hash of each id.
        store: the passages.
    """
    order = np.argsort(hashes, kind="stable")
    same = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
    seen: set[str] = set()
    duplicates = []
    for row in np.unique(np.concatenate([order[same], order[same + 1]])).tolist():
        doc = store.id(row)
        if doc in seen:
            duplicates.append(row)
        seen.add(doc)
    return duplicates
