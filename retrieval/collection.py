"""Collections: read once from their source, then opened by memory map.

`open_collection` keeps a checked copy of a source in the user's cache: `passages.arrow`, and two arrays that lead from
an id to its row. What is made from a collection (indexes, embeddings) lives beside them in `Collection.folder`.
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
from core.data_paths import by_set, corpus_source, is_hub_name, set_names
from core.errors import InputError
from core.records import Passage
from core.runtime import log
from core.settings import Settings
from retrieval.corpus import WAY_OUT, LeftOut, hub_data_set, read_corpus
from retrieval.passage_file import PassageFile, write_passages

FORMAT = 1  # of the files in a collection's folder
SAY_EVERY = 1_000_000  # passages


class Collection:
    """A checked collection; open one with `open_collection`.

    Args:
        folder: its folder in the cache; what is made from the collection may be kept there.
        identity: SHA-256 of the source file, or the fingerprint of a Hub data set.
    """

    def __init__(self, folder: Path, identity: str):
        self.folder, self.identity = folder, identity
        self._file = PassageFile(folder / "passages.arrow")
        self._hashes = np.load(folder / "hashes.npy", mmap_mode="r", allow_pickle=False)
        self._rows = np.load(folder / "rows.npy", mmap_mode="r", allow_pickle=False)

    def __len__(self) -> int:
        return len(self._file)

    def __contains__(self, doc: str) -> bool:
        return self._row_of(doc) is not None

    def passages(self) -> Iterator[Passage]:
        """Every passage, in the order of the source."""
        return iter(self._file)

    def ids(self, rows: Sequence[int]) -> list[str]:
        """The ids of rows (places in the order of the source, from 0)."""
        return self._file.ids(rows)

    def contents(self, ids: Sequence[str]) -> list[str]:
        """What the generator reads of each document: `Passage.content`.

        Raises:
            InputError: an id is not in the collection.
        """
        found = []
        for doc in ids:
            row = self._row_of(doc)
            if row is None:
                raise InputError(
                    f"the document `{doc}` is not in the collection; what is ranked must have the ids of "
                    f"`data.corpus`."
                )
            found.append(self._file.passage(row).content)
        return found

    def _row_of(self, doc: str) -> int | None:
        key = np.uint64(hash_of(doc))
        place = int(np.searchsorted(self._hashes, key))
        while place < len(self._hashes) and self._hashes[place] == key:  # different ids may share a hash
            row = int(self._rows[place])
            if self._file.id(row) == doc:
                return row
            place += 1
        return None


def open_collection(source: str, cache: Path | None = None, on_bad: Literal["stop", "skip"] = "stop") -> Collection:
    """Open a collection; its source is read and checked first when that was not done before.

    Several processes may open the same source at once: one reads it, the others wait.

    Args:
        source: a .jsonl or .tsv file (both also .gz), a .parquet file, or the name of a Hub data set.
        cache: folder of all collections; `user_cache()` when not given.
        on_bad: raise for a passage that cannot be used (`stop`), or leave it out and count it (`skip`).

    Raises:
        InputError: a record cannot be used (names file, line, field and value), an id stands twice, or there is no
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
    identity = identity_of(source, cache)
    folder = cache / identity[:16]
    folder.mkdir(parents=True, exist_ok=True)
    complete = folder / "collection.json"
    with FileLock(folder / ".lock"):
        if not complete.exists() or read_json(complete)["format"] != FORMAT:
            left_out = LeftOut() if on_bad == "skip" else None
            count = build(source, folder, left_out)
            if identity_of(source, cache) != identity:
                raise InputError(f"{source}: the file changed while it was read; start again.")
            skipped = left_out or LeftOut()
            made = {"source": source, "identity": identity, "passages": count}
            made |= {"left_out": skipped.count, "first_left_out": skipped.first}
            write_json(complete, {"format": FORMAT} | made)
            log.info("collection: %d passages, %d records left out -> %s", count, skipped.count, folder)
    made = read_json(complete)
    if made["left_out"] and on_bad == "stop":
        raise InputError(
            f"{made['first_left_out']} There are {made['left_out']} bad records in {made['source']}. {WAY_OUT}"
        )
    return Collection(folder, identity)


def collection_of(settings: Settings, source: str | None = None) -> Collection:
    """The collection of a run, or another `source` with the run's settings."""
    cache = Path(settings.retrieval.cache) if settings.retrieval.cache else None
    return open_collection(source or corpus_source(settings), cache, settings.data.on_bad)


def collections_of(settings: Settings) -> dict[str, Collection]:
    """The collection of each data set, by the set's name; in a run without `data.sets` its only one, under ""."""
    return {name: collection_of(settings, corpus_source(settings, name)) for name in set_names(settings)}


def identities_of(collections: Mapping[str, Collection]) -> str | dict[str, str]:
    """What a stage records of the collections that it reads."""
    return by_set({name: collection.identity for name, collection in collections.items()})


def identity_of(source: str, cache: Path) -> str:
    """What tells a source from others: the SHA-256 of a file, or the fingerprint of a Hub data set.

    A file's hash is noted in the cache, and computed again when the file's size, inode or times have changed.

    Raises:
        InputError: the file cannot be read, or the data set not be fetched.
    """
    path = Path(source)
    if not path.is_file() and is_hub_name(source):
        return hub_data_set(source)._fingerprint
    try:
        path.stat()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}).") from error
    return cached_sha256(path, cache)


def hash_of(doc: str) -> int:
    """64 bits that stand for an id."""
    return int.from_bytes(hashlib.blake2b(doc.encode(errors="surrogatepass"), digest_size=8).digest(), "big")


def build(source: str, folder: Path, left_out: LeftOut | None) -> int:
    """Read a source into a folder.

    Args:
        source: the source.
        folder: where its files go; a reading that was stopped leaves a `.partial` file for the next to write over.
        left_out: takes the records that cannot be used; without it, the first one raises.

    Returns:
        Number of passages.

    Raises:
        InputError: see `open_collection`.
    """
    log.info("collection: reading %s", source)
    hashes, numbers = array("Q"), array("Q")

    def noted() -> Iterator[Passage]:
        for number, passage in read_corpus(source, left_out):
            hashes.append(hash_of(passage.id))
            numbers.append(number)
            if len(hashes) % SAY_EVERY == 0:
                log.info("collection: %d passages read", len(hashes))
            yield passage

    partial = folder / "passages.partial"
    write_passages(partial, noted())
    keys, read = np.array(hashes, dtype=np.uint64), PassageFile(partial)
    twice = repeated(keys, read)
    for row in sorted(twice):
        error = InputError(f"{source}:{numbers[row]}: the id `{read.id(row)}` stands twice; ids must be unique.")
        if left_out is None:
            raise InputError(f"{error} {WAY_OUT}")
        left_out.add(error)
    if not len(keys):
        why = f" {left_out.count} records were left out, the first: {left_out.first}" if left_out else ""
        raise InputError(f"{source}: the collection is empty; passages with `id` and `text` are expected.{why}")
    if twice:
        keys = np.delete(keys, sorted(twice))
        kept = folder / "kept.partial"
        write_passages(kept, (passage for row, passage in enumerate(read) if row not in twice))
        kept.replace(partial)
    order = np.argsort(keys, kind="stable")
    np.save(folder / "hashes.npy", keys[order], allow_pickle=False)
    np.save(folder / "rows.npy", order, allow_pickle=False)
    partial.replace(folder / "passages.arrow")
    return len(keys)


def repeated(keys: np.ndarray, read: PassageFile) -> set[int]:
    """Rows whose id stood in an earlier row.

    Args:
        keys: [passages] the hash of each id.
        read: the passages.
    """
    order = np.argsort(keys, kind="stable")
    same = np.flatnonzero(keys[order][1:] == keys[order][:-1])
    seen, twice = set(), set()
    for row in sorted({int(order[place]) for start in same for place in (start, start + 1)}):
        if read.id(row) in seen:
            twice.add(row)
        seen.add(read.id(row))
    return twice
