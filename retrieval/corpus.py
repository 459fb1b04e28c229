"""Read document collections: passages are streamed from a file or a Hub data set and checked one by one.

Formats: JSONL (one object per line), TSV (the first line names the columns, like TopiOCQA's `id text title`), both
optionally gzipped, and parquet. Every record has the fields `id`, `text` and optionally `title`.
"""

import csv
import gzip
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from core.artifacts import json_object
from core.data_sources import is_hub_name
from core.errors import InputError, first_line
from core.json_records import parse_record
from core.records import Passage

FIELDS = ("id", "text", "title")
BATCH = 1000  # rows of a table to read at once
JSON_LINES = (".jsonl", ".jsonlines", ".json-lines", ".ndjson")

UNDECODED = re.compile("[\udc80-\udcff]")  # `surrogateescape` decodes bytes that are not UTF-8 to these

OnBad = Callable[[InputError], None]  # called for each invalid record
Records = Iterator[tuple[int, dict[str, Any]]]  # number of the line or row, from 1, and the record


class EmptyPassage(InputError):
    """A passage without text, the most common defect of collections."""


def read_corpus(source: str, on_bad: OnBad) -> Iterator[tuple[int, Passage]]:
    """Read the passages of a collection in order; duplicate ids are not detected.

    Args:
        source: a file or the name of a Hub data set.
        on_bad: called with the error of each invalid record, which names file, line, field and value.

    Yields:
        Number of the line (of the row in a table; from 1), and the passage.

    Raises:
        InputError: the source cannot be read.
    """
    for number, record in read_records(source, on_bad):
        try:
            passage = parse_record(Passage, record, f"{source}:{number}")
        except InputError as error:
            has_text = "text" in record and str(record["text"] or "").strip()
            on_bad(error if has_text else EmptyPassage(str(error)))
        else:
            yield number, passage


def read_records(source: str, on_bad: OnBad) -> Records:
    """Read the records of a source, before their fields are checked."""
    path = Path(source)
    if not path.is_file() and is_hub_name(source):
        return read_table(hub_dataset(source).with_format("arrow").iter(BATCH))
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(JSON_LINES):
        return read_jsonl(path, on_bad)
    if name.endswith(".tsv"):
        return read_tsv(path, on_bad)
    if path.suffix.lower() == ".parquet":
        return read_table(parquet_batches(path))
    raise InputError(
        f"{path}: a collection must be a .jsonl, .tsv (both also .gz) or .parquet file, or a data set of the Hub; "
        f"convert it to JSONL with the fields `id`, `text` and optionally `title`."
    )


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, decompressed if its name ends in .gz, without a byte order mark."""
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file):
                yield line.removeprefix(b"\xef\xbb\xbf") if number == 0 else line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: damaged gzip file ({first_line(error)}); download or compress it again.") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error


def read_jsonl(path: Path, on_bad: OnBad) -> Records:
    """Yield the objects of a JSONL file."""
    for number, line in enumerate(read_lines(path), 1):
        place = f"{path}:{number}"
        try:
            if line.strip():
                yield number, json_object(line.decode(), place)
        except UnicodeDecodeError as error:
            on_bad(InputError(f"{place}: not UTF-8 text (byte {error.start} of the line: {error.reason})."))
        except InputError as error:
            on_bad(error)


def read_tsv(path: Path, on_bad: OnBad) -> Records:
    """Yield the rows of a TSV file; fields may be quoted as in CSV."""
    csv.field_size_limit(1 << 30)
    reader = csv.reader((line.decode(errors="surrogateescape") for line in read_lines(path)), delimiter="\t")
    try:
        header = [name.strip() for name in next(reader, [])]
    except csv.Error as error:
        raise InputError(f"{path}:1: not valid TSV ({error}).") from error
    if not {"id", "text"} <= {*header}:
        raise InputError(
            f"{path}:1: the first line must name the columns `id`, `text` and optionally `title`, got {header}."
        )
    while True:
        number = reader.line_num + 1
        place = f"{path}:{number}"
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            on_bad(InputError(f"{place}: not valid TSV ({error})."))
            continue
        record = dict(zip(header, row, strict=False))
        if row and len(row) != len(header):
            hint = 'a field that contains a tab or a line break, or starts with ", must be quoted.'
            on_bad(InputError(f"{place}: {len(row)} columns, but the header has {len(header)}; {hint}"))
        elif broken := [name for name in FIELDS if UNDECODED.search(record.get(name, ""))]:
            on_bad(InputError(f"{place}: the field `{broken[0]}` is not UTF-8 text."))
        elif row:
            yield number, record


def read_table(batches: Iterable[pyarrow.RecordBatch | pyarrow.Table]) -> Records:
    """Yield the rows of a table that is read in batches; ids may be whole numbers."""
    for number, row in enumerate((row for batch in batches for row in batch.to_pylist()), 1):
        yield number, row | {"id": str(row["id"])} if type(row.get("id")) is int else row


def parquet_batches(path: Path) -> Iterator[pyarrow.RecordBatch]:
    """Yield the columns `id`, `text` and `title` of a parquet file, `BATCH` rows at a time."""
    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            yield from table.iter_batches(BATCH, columns=[name for name in FIELDS if name in table.schema_arrow.names])
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as parquet ({first_line(error)}).") from error


@lru_cache(maxsize=2)
def hub_dataset(source: str):
    """Load a data set of the Hub: `owner/name`, or `owner/name:split` for a split other than `train`.

    Raises:
        InputError: the data set cannot be loaded.
    """
    from datasets import load_dataset  # slow import

    name, _, split = source.partition(":")
    try:
        dataset = load_dataset(name, split=split or "train", keep_in_memory=False)
    except Exception as error:  # the network, the Hub and dataset builders raise many types
        raise InputError(
            f"`{source}` is neither a file nor a readable data set of the Hub ({first_line(error)})."
        ) from error
    return dataset.select_columns([name for name in FIELDS if name in dataset.column_names])
