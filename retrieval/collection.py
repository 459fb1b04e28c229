"""Collections: read and checked once, then stored in the user's cache.

`open_collection` copies a source into an SQLite database, `passages.sqlite`, in a folder of the cache. Indexes and
embeddings of the collection are stored in the same folder, `Collection.folder`.
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
from retrieval.corpus import EmptyPassage, hub_dataset, read_corpus

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
        folder: its folder in the cache, which also contains its indexes and embeddings.
        identity: SHA-256 of the source; see `source_identity`.
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
        """The contents of documents, as the generator reads them: `Passage.content`.

        Raises:
            InputError: an id is not in the collection.
        """
        contents = []
        for doc in ids:
            fields = self._database.execute("SELECT id, text, title FROM passages WHERE id = ?", [doc]).fetchone()
            if fields is None:
                raise InputError(
                    f"the document `{doc}` is not in the collection; ids of ranked documents must be in `data.corpus`."
                )
            contents.append(Passage(*fields).content)
        return contents

    def skipped(self) -> tuple[int, int, str]:
        """The number of invalid records of the source, how many of them have no text, and the first reason."""
        return self._database.execute(SKIPPED).fetchone()


def open_collection(source: str, cache: Path | None = None, on_bad: Literal["stop", "skip"] = "stop") -> Collection:
    """Open a collection. The first call reads and checks its source.

    Several processes may open a source at the same time: one reads it while the others wait.

    Args:
        source: a .jsonl or .tsv file (both also .gz), a .parquet file, or the name of a Hub data set.
        cache: folder of all collections; `user_cache()` by default.
        on_bad: raise an error for an invalid record (`stop`), or skip and count it (`skip`).

    Raises:
        InputError: a record is invalid (names file, line, field and value), an id is duplicated, or there is no
            passage.
    """
    cache = cache or user_cache()
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{cache}: collections cannot be stored in this folder ({error.strerror}); choose another one with "
            f"`--retrieval.cache`."
        ) from error
    identity = source_identity(source, cache)
    folder = cache / identity[:16]

    def build(file: Path) -> None:
        import_source(source, file, on_bad == "skip")
        if source_identity(source, cache) != identity:
            raise InputError(f"{source}: the file changed while it was read; rerun the command.")

    built = build_once(folder / DATABASE, build)
    collection = Collection(folder, identity)
    skipped, empty, reason = collection.skipped()
    if built:
        log.info("collection: %d passages, %d records skipped -> %s", len(collection), skipped, folder)
    if skipped and on_bad == "stop":
        empty_hint = f", {empty} of them without text" if empty else ""
        raise InputError(
            f"{reason} There are {skipped} bad records in {source}{empty_hint}. `--data.on_bad skip` skips such "
            "records."
        )
    return collection


def open_collections(
    sources: Sequence[DataSource], cache: str | None = None, on_bad: Literal["stop", "skip"] = "stop"
) -> dict[str, Collection]:
    """Open the collection of each data set, by the name of the set; see `open_collection`."""
    for source in sources:
        source.check_corpus()
    folder = Path(cache) if cache else None
    return {source.name: open_collection(source.corpus, folder, on_bad) for source in sources}


def identities_of(collections: Mapping[str, Collection]) -> str | dict[str, str]:
    """Identify the collections of a stage in its manifest."""
    return by_data_set({name: collection.identity for name, collection in collections.items()})


def source_identity(source: str, cache: Path) -> str:
    """Identify a source by the SHA-256 of the file, or of the Arrow files of a Hub data set.

    The folder `cache` stores the hashes, so that a file is only read again after a change.

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
    """Read a source into a new database; raises the errors of `open_collection`."""
    log.info("collection: reading %s", source)
    file.unlink(missing_ok=True)  # left by a killed process
    try:
        with closing(sqlite3.connect(file)) as database:
            database.executescript(SCHEMA)
            fill(database, source, skip_bad)
            database.commit()
    except sqlite3.OperationalError as error:
        raise InputError(f"{file}: cannot be written ({error}); is the disk full?") from error


def fill(database: sqlite3.Connection, source: str, skip_bad: bool) -> None:
    """Insert the passages of a source, and the reasons why records are invalid. If invalid records are skipped, log
    the first of them."""

    def skip(error: InputError) -> None:
        values = str(error), isinstance(error, EmptyPassage)
        row = database.execute("INSERT INTO skipped VALUES (?, ?)", values).lastrowid
        if skip_bad and row <= MAX_WARNINGS:
            log.warning("skipped: %s", error)

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
        hint = f" None of its {skipped} records is valid; the first: {reason}" if skipped else ""
        raise InputError(f"{source}: the collection is empty; expected passages with `id` and `text`.{hint}")
