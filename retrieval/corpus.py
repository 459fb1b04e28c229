"""Readers of document collections: passages streamed from a file or a Hub data set, each one checked.

Formats: JSONL (one object per line), TSV (the first line names the columns, like TopiOCQA's `id text title`), both
also gzipped, and parquet. Every record has the fields `id`, `text` and optionally `title`.
"""

import csv
import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

import pyarrow
import pyarrow.parquet

from core.artifacts import json_object
from core.data_sources import is_hub_name
from core.errors import InputError, first_line
from core.json_records import parse_record
from core.records import Passage

FIELDS = ("id", "text", "title")
SKIP_HINT = "`--data.on_bad skip` leaves such records out."
BATCH = 1000  # rows of a table read at once
JSON_LINES = (".jsonl", ".jsonlines", ".json-lines", ".ndjson")

Rows = Iterator[tuple[int, Any]]  # number of the line or row, from 1, and its raw content
Parse = Callable[[Any, str], dict[str, Any]]  # raw content and place -> record; raises InputError


def refuse(error: InputError) -> NoReturn:
    """Raise the error of a record that cannot be used, with the way to skip it."""
    raise InputError(f"{error} {SKIP_HINT}") from error


def read_corpus(source: str, on_bad: Callable[[InputError], None] = refuse) -> Iterator[tuple[int, Passage]]:
    """Read the passages of a collection in order; duplicate ids are not detected.

    Args:
        source: a file or the name of a Hub data set.
        on_bad: called for each record that cannot be used; by default, the first of them raises.

    Yields:
        Number of the line (of the row in a table; from 1), and the passage.

    Raises:
        InputError: the source cannot be read, or a record cannot be used: names file, line, field and value.
    """
    rows, parse = open_rows(source)
    for number, row in rows:
        place = f"{source}:{number}"
        try:
            passage = parse_record(Passage, parse(row, place), place)
        except InputError as error:
            on_bad(error)
        else:
            yield number, passage


def open_rows(source: str) -> tuple[Rows, Parse]:
    """The raw records of a source and the function that parses one of them.

    Raises:
        InputError: the source does not exist, has an unknown format, or is damaged.
    """
    path = Path(source)
    if not path.is_file() and is_hub_name(source):
        return table_rows(hub_dataset(source).with_format("arrow").iter(BATCH)), parse_table_row
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(JSON_LINES):
        return ((number, line) for number, line in enumerate(read_lines(path), 1) if line.strip()), parse_json
    if name.endswith(".tsv"):
        return open_tsv(path)
    if path.suffix.lower() == ".parquet":
        return table_rows(parquet_batches(path)), parse_table_row
    raise InputError(
        f"{path}: a collection is a .jsonl, .tsv (both also .gz) or .parquet file, or a data set of the Hub; convert "
        f"it to JSONL with the fields `id`, `text` and, where there is one, `title`."
    )


def read_lines(path: Path) -> Iterator[bytes]:
    """Lines of a file, decompressed if its name ends in .gz, without a byte order mark."""
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file):
                yield line.removeprefix(b"\xef\xbb\xbf") if number == 0 else line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: damaged gzip file ({first_line(error)}); fetch or pack it again.") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error


def parse_json(line: bytes, place: str) -> dict[str, Any]:
    """Parse a line of JSONL."""
    try:
        return json_object(line.decode(), place)
    except UnicodeDecodeError as error:
        raise InputError(f"{place}: not UTF-8 text (byte {error.start} of the line: {error.reason}).") from error


def open_tsv(path: Path) -> tuple[Rows, Parse]:
    """Rows and parser of a TSV file; fields may be quoted as in CSV.

    Raises:
        InputError: the first line does not name the columns `id` and `text`.
    """
    csv.field_size_limit(1 << 30)
    reader = csv.reader((line.decode(errors="surrogateescape") for line in read_lines(path)), delimiter="\t")
    header = [name.strip() for name in next(reader, [])]
    if not {"id", "text"} <= {*header}:
        raise InputError(
            f"{path}:1: the first line must name the columns `id`, `text` and perhaps `title`, got {header}."
        )

    def rows() -> Rows:
        while True:
            number = reader.line_num + 1
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                row = error
            if row:
                yield number, row

    def parse(row: list[str] | csv.Error, place: str) -> dict[str, Any]:
        if isinstance(row, csv.Error):
            raise InputError(f"{place}: not valid TSV ({row}).") from row
        if len(row) != len(header):
            raise InputError(
                f"{place}: {len(row)} columns where the header has {len(header)}; a field with a tab or a line end, "
                f'or that begins with ", must stand between quotes.'
            )
        record = dict(zip(header, row, strict=True))
        for name in FIELDS:
            try:
                record.get(name, "").encode()
            except UnicodeEncodeError as error:
                raise InputError(f"{place}: the field `{name}` is not UTF-8 text.") from error
        return record

    return rows(), parse


def table_rows(batches: Iterable[pyarrow.RecordBatch | pyarrow.Table]) -> Rows:
    """Rows of a table that is read in batches."""
    return enumerate((row for batch in batches for row in batch.to_pylist()), 1)


def parse_table_row(row: dict[str, Any], place: str) -> dict[str, Any]:
    """Parse a row of a table: an id may be a whole number."""
    return row | {"id": str(row["id"])} if type(row["id"]) is int else row


def parquet_batches(path: Path) -> Iterator[pyarrow.RecordBatch]:
    """The columns `id`, `text` and `title` of a parquet file, `BATCH` rows at a time."""
    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            yield from table.iter_batches(BATCH, columns=[name for name in FIELDS if name in table.schema_arrow.names])
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path}: cannot be read as parquet ({first_line(error)}).") from error


@lru_cache(maxsize=2)
def hub_dataset(source: str):
    """A data set of the Hub, loaded by `datasets`.

    Args:
        source: `owner/name`, or `owner/name:split` for another split than `train`.

    Raises:
        InputError: it cannot be loaded.
    """
    from datasets import load_dataset  # heavy

    name, _, split = source.partition(":")
    try:
        dataset = load_dataset(name, split=split or "train", keep_in_memory=False)
    except Exception as error:  # the network, the Hub and dataset builders raise all kinds
        raise InputError(
            f"`{source}` is no file, and no data set of the Hub could be read by that name ({first_line(error)})."
        ) from error
    return dataset.select_columns([name for name in FIELDS if name in dataset.column_names])
