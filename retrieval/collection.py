"""Collections: read and checked once, then kept in the user's cache.

`open_collection` copies a source into an SQLite database, `passages.sqlite`, in a folder of the cache. Indexes and
embeddings of the collection are kept beside it, in `Collection.folder`.
"""

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import starmap
from pathlib import Path
from typing import Literal

from core.cache import build_once, cached_sha256, user_cache
from core.data_sources import DataSource, by_data_set, is_hub_name
from core.errors import InputError
from core.progress import log
from core.records import Passage
from retrieval.corpus import SKIP_HINT, EmptyPassage, hub_dataset, read_corpus

DATABASE = "passages.sqlite"
SCHEMA = """
PRAGMA journal_mode = MEMORY;
PRAGMA synchronous = OFF;
CREATE TABLE passages (row INTEGER PRIMARY KEY, id TEXT UNIQUE, text TEXT, title TEXT);
CREATE TABLE skipped (reason TEXT, empty INTEGER);
"""
SKIPPED = "SELECT count(*), ifnull(sum(empty), 0), (SELECT reason FROM skipped WHERE rowid = 1) FROM skipped"
LOG_EVERY = 1_000_000  # passages
MAX_WARNINGS = 5  # skipped records that are logged one by one


class Collection:
    """A checked collection; open one with `open_collection`.

    Args:
        folder: its folder in the cache, which also keeps what is derived from the collection.
        identity: SHA-256 of the source, see `source_identity`.
    """

    def __init__(self, folder: Path, identity: str):
        self.folder, self.identity = folder, identity
        uri = (folder / DATABASE).absolute().as_uri()
        self._database = sqlite3.connect(f"{uri}?mode=ro&immutable=1", uri=True, check_same_thread=False)
        (self._size,) = self._database.execute("SELECT max(row) + 1 FROM passages").fetchone()

    def __len__(self) -> int:
        return self._size

    def __contains__(self, doc: str) -> bool:
        return self._database.execute("SELECT 1 FROM passages WHERE id = ?", [doc]).fetchone() is not None

    def passages(self) -> Iterator[Passage]:
        """Every passage, in the order of the source."""
        return starmap(Passage, self._database.execute("SELECT id, text, title FROM passages ORDER BY row"))

    def ids(self, rows: Sequence[int]) -> list[str]:
        """The ids of rows (positions in the order of the source, from 0)."""
        query = "SELECT row, id FROM passages WHERE row IN (SELECT value FROM json_each(?))"
        ids = dict(self._database.execute(query, [json.dumps(rows)]))
        return [ids[row] for row in rows]

    def contents(self, ids: Sequence[str]) -> list[str]:
        """The text that the generator reads of each document: `Passage.content`.

        Raises:
            InputError: an id is not in the collection.
        """
        contents = []
        for doc in ids:
            fields = self._database.execute("SELECT id, text, title FROM passages WHERE id = ?", [doc]).fetchone()
            if fields is None:
                raise InputError(
                    f"the document `{doc}` is not in the collection; ranked documents must have ids of `data.corpus`."
                )
            contents.append(Passage(*fields).content)
        return contents

    def skipped(self) -> tuple[int, int, str]:
        """Records of the source that cannot be used: their number, how many have no text, and the first reason."""
        return self._database.execute(SKIPPED).fetchone()


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

    def build(file: Path) -> None:
        import_source(source, file, on_bad == "skip")
        if source_identity(source, cache) != identity:
            raise InputError(f"{source}: the file changed while it was read; start again.")

    built = build_once(folder / DATABASE, build)
    collection = Collection(folder, identity)
    skipped, empty, reason = collection.skipped()
    if built:
        log.info("collection: %d passages, %d records left out -> %s", len(collection), skipped, folder)
    if skipped and on_bad == "stop":
        kinds = f", {empty} of them passages without text" if empty else ""
        raise InputError(f"{reason} There are {skipped} bad records in {source}{kinds}. {SKIP_HINT}")
    return collection


def open_collections(
    sources: Sequence[DataSource], cache: str | None = None, on_bad: Literal["stop", "skip"] = "stop"
) -> dict[str, Collection]:
    """The collection of each data set, by the name of the set; `cache` and `on_bad` as for `open_collection`."""
    folder = Path(cache) if cache else None
    return {source.name: open_collection(source.corpus, folder, on_bad) for source in sources}


def identities_of(collections: Mapping[str, Collection]) -> str | dict[str, str]:
    """What a stage records of the collections that it reads."""
    return by_data_set({name: collection.identity for name, collection in collections.items()})


def source_identity(source: str, cache: Path) -> str:
    """What identifies a source: the SHA-256 of a file, or that of the Arrow files of a Hub data set.

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
        return cached_sha256(path, cache)
    except FileNotFoundError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}).") from error


def import_source(source: str, file: Path, skip_bad: bool) -> None:
    """Read a source into a new database; raises as `open_collection`."""
    log.info("collection: reading %s", source)
    file.unlink(missing_ok=True)  # what a killed process left
    try:
        with closing(sqlite3.connect(file)) as database:
            database.executescript(SCHEMA)
            fill(database, source, skip_bad)
            database.commit()
    except sqlite3.OperationalError as error:
        raise InputError(f"{file}: cannot be written ({error}); is the disk full?") from error


def fill(database: sqlite3.Connection, source: str, skip_bad: bool) -> None:
    """Insert the passages of a source, and the reasons of the records that cannot be used; log the first of these
    where the run goes on without them."""

    def skip(error: InputError) -> None:
        values = str(error), isinstance(error, EmptyPassage)
        row = database.execute("INSERT INTO skipped VALUES (?, ?)", values).lastrowid
        if skip_bad and row <= MAX_WARNINGS:
            log.warning("left out: %s", error)

    count = 0
    for number, passage in read_corpus(source, skip):
        values = count, passage.id, passage.text, passage.title
        if not database.execute("INSERT OR IGNORE INTO passages VALUES (?, ?, ?, ?)", values).rowcount:
            skip(InputError(f"{source}:{number}: the id `{passage.id}` appears twice; ids must be unique."))
            continue
        count += 1
        if count % LOG_EVERY == 0:
            log.info("collection: %d passages read", count)
    if not count:
        skipped, _, reason = database.execute(SKIPPED).fetchone()
        hint = f" None of its {skipped} records can be used; the first: {reason}" if skipped else ""
        raise InputError(f"{source}: the collection is empty; passages with `id` and `text` are expected.{hint}")
