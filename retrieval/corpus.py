"""Passages streamed from a file or a Hub data set, each one checked.

Files: JSONL (one object a line), TSV (a header line with the names of the columns, as TopiOCQA's `id text title`),
both also gzipped, and parquet. Every format has the fields `id`, `text` and, where there is one, `title`.
"""

import csv
import gzip
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from core.artifacts import json_object
from core.data_paths import is_hub_name
from core.errors import InputError, fields_of, first_line
from core.records import Passage
from core.runtime import log

FIELDS = ("id", "text", "title")
SAID = 5  # records left out that are named in the log, one by one
WAY_OUT = "`--data.on_bad skip` leaves such records out."
BATCH = 1000  # rows read at once from a table
JSON_LINES = (".jsonl", ".jsonlines", ".json-lines", ".ndjson")

Row = tuple[int, Callable[[str], Passage]]  # number of the line or row, and what makes its passage, given the place


@dataclass
class LeftOut:
    """What was left out of a collection: how many records, and why the first of them."""

    count: int = 0
    first: str = ""

    def add(self, error: InputError) -> None:
        """Count a record, and log it if it is one of the first."""
        self.count += 1
        self.first = self.first or str(error)
        if self.count <= SAID:
            log.warning("left out: %s", error)


def read_corpus(source: str, left_out: LeftOut | None = None) -> Iterator[tuple[int, Passage]]:
    """Passages of a collection in its order; ids are not compared.

    Args:
        source: a file or the name of a Hub data set.
        left_out: takes the records that cannot be used; without it, the first one raises.

    Yields:
        Number of the line (of the row in a table; from 1), and the passage.

    Raises:
        InputError: the source cannot be read, or a record not be used: names file, line, field and value.
    """
    for number, make in rows_of(source):
        try:
            yield number, make(f"{source}:{number}")
        except InputError as error:
            if left_out is None:
                raise InputError(f"{error} {WAY_OUT}") from error
            left_out.add(error)


def rows_of(source: str) -> Iterator[Row]:
    """The records of a source, not yet looked at.

    Raises:
        InputError: there is no such source, it is of no known format, or it is damaged.
    """
    path = Path(source)
    if not path.is_file() and is_hub_name(source):
        return table_rows(hub_data_set(source).with_format(None).iter(BATCH), source)
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(JSON_LINES):
        return json_rows(path)
    if name.endswith(".tsv"):
        return tsv_rows(path)
    if path.suffix.lower() == ".parquet":
        return table_rows(parquet_batches(path), source)
    raise InputError(
        f"{path}: a collection is a .jsonl, .tsv (both also .gz) or .parquet file, or a data set of the Hub; convert "
        f"it to JSONL with the fields `id`, `text` and, where there is one, `title`."
    )


def passage_of(record: dict[str, Any], place: str) -> Passage:
    """A passage from its record.

    Raises:
        InputError: a field is missing or of the wrong type; begins with `place`.
    """
    for name in ("id", "text"):
        value = record.get(name)
        if not isinstance(value, str) or not value.strip():
            what = f"must be a text that is not empty, got {value!r:.60}"
            what = what if name in record else f"is missing (there are: {fields_of(record)})"
            raise InputError(f"{place}: the field `{name}` {what}.")
    if not record["id"].isprintable():
        raise InputError(f"{place}: `id` must have no control characters, got {record['id']!r:.60}.")
    title = record.get("title") or ""
    if not isinstance(title, str):
        raise InputError(f"{place}: `title` must be a text, got {title!r:.60}.")
    passage = Passage(record["id"], record["text"], title)
    for name in FIELDS:
        try:
            getattr(passage, name).encode()
        except UnicodeEncodeError as error:
            raise InputError(f"{place}: the field `{name}` is not UTF-8 text.") from error
    return passage


def lines_of(path: Path) -> Iterator[bytes]:
    """Lines of a file, unpacked if its name ends in .gz, without a byte order mark."""
    try:
        with open_bytes(path) as handle:
            for number, line in enumerate(handle):
                yield line.removeprefix(b"\xef\xbb\xbf") if number == 0 else line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: damaged gzip file ({first_line(error)}); fetch or pack it again.") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error


def open_bytes(path: Path) -> BinaryIO:
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb")


def json_rows(path: Path) -> Iterator[Row]:
    """One JSON object a line; empty lines are passed over."""

    def make(line: bytes, place: str) -> Passage:
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise InputError(f"{place}: not UTF-8 text (byte {error.start} of the line: {error.reason}).") from error
        return passage_of(json_object(text, place), place)

    for number, line in enumerate(lines_of(path), 1):
        if line.strip():
            yield number, lambda place, line=line: make(line, place)


def tsv_rows(path: Path) -> Iterator[Row]:
    """Columns between tabs, named by the first line; fields are quoted as Python's and most other CSV writers do.

    Raises:
        InputError: the header does not name `id` and `text`.
    """
    csv.field_size_limit(1 << 30)
    reader = csv.reader((line.decode(errors="surrogateescape") for line in lines_of(path)), delimiter="\t")
    header = [name.strip() for name in next(reader, [])]
    if not {"id", "text"} <= {*header}:
        raise InputError(
            f"{path}:1: the first line must name the columns `id`, `text` and perhaps `title`, got {header}."
        )

    def make(cells: list[str], place: str) -> Passage:
        if len(cells) != len(header):
            raise InputError(
                f"{place}: {len(cells)} columns where the header has {len(header)}; a field with a tab or a line end, "
                f'or that begins with ", must stand between quotes.'
            )
        return passage_of(dict(zip(header, cells, strict=True)), place)

    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield number, lambda place, error=error: refuse(f"{place}: not valid TSV ({error}).")
            continue
        if cells:
            yield number, lambda place, cells=cells: make(cells, place)


def refuse(message: str) -> Passage:
    raise InputError(message)


def parquet_batches(path: Path) -> Iterator[dict[str, list]]:
    """The columns `id`, `text` and `title` of a parquet file, some rows at a time."""
    import pyarrow.parquet
    from pyarrow import ArrowException

    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            columns = [name for name in FIELDS if name in table.schema_arrow.names]
            if {"id", "text"} <= {*columns}:
                for batch in table.iter_batches(BATCH, columns=columns):
                    yield batch.to_pydict()
            else:
                raise no_columns(path, table.schema_arrow.names)
    except (ArrowException, OSError) as error:
        raise InputError(f"{path}: cannot be read as parquet ({first_line(error)}).") from error


def no_columns(source: str | Path, names: list[str]) -> InputError:
    return InputError(f"{source}: the columns `id` and `text` are needed, got {', '.join(names)}; rename them.")


@lru_cache(maxsize=2)
def hub_data_set(source: str):
    """A data set of the Hub, read through `datasets`.

    Args:
        source: `owner/name`, or `owner/name:split` for another split than `train`.

    Raises:
        InputError: it cannot be fetched, or lacks a column.
    """
    from datasets import load_dataset

    name, _, split = source.partition(":")
    try:
        found = load_dataset(name, split=split or "train")
    except Exception as error:  # whatever the network, the Hub or a builder may raise
        raise InputError(
            f"`{source}` is no file, and no data set of the Hub could be read by that name ({first_line(error)})."
        ) from error
    if not {"id", "text"} <= {*found.column_names}:
        raise no_columns(source, found.column_names)
    return found.select_columns([name for name in FIELDS if name in found.column_names])


def table_rows(batches: Iterator[dict[str, list]], source: str) -> Iterator[Row]:
    """Rows of columns; whole numbers are taken as ids."""

    def make(record: dict[str, Any], place: str) -> Passage:
        number = type(record["id"]) is int
        return passage_of(record | {"id": str(record["id"])} if number else record, place)

    number = 0
    for columns in batches:
        for values in zip(*columns.values(), strict=True):
            number += 1
            record = dict(zip(columns, values, strict=True))
            yield number, lambda place, record=record: make(record, place)
