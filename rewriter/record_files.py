"""Read and write files of records: JSONL, or a `.json` file with a list."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from core.artifacts import json_object, read_json_texts, write_atomic
from core.errors import InputError
from core.json_records import parse_record, to_json_dict
from core.records import Turn

T = TypeVar("T")


def read_records(kind: type[T], path: Path) -> Iterator[tuple[str, T]]:
    """Yield the place and the parsed record of each record of a file.

    Args:
        kind: a dataclass; fields that it does not have are ignored.
        path: the file.

    Raises:
        InputError: a record is invalid; the message names file, line or record, field and value.
    """
    for _, place, text in read_json_texts(path):
        yield place, parse_record(kind, json_object(text, place), place)


def unique_turns(path: Path, turns: Iterable[tuple[str, Turn]]) -> list[Turn]:
    """Turns from (place, turn) pairs of a file; raises InputError for a repeated id or if there is no turn."""
    by_id: dict[str, Turn] = {}
    for place, turn in turns:
        if turn.id in by_id:
            raise InputError(f"{place}: the id `{turn.id}` is repeated; ids of turns must be unique.")
        by_id[turn.id] = turn
    if not by_id:
        raise InputError(f"{path}: no turns in the file; docs/data.md describes the format.")
    return list(by_id.values())


def write_records(path: Path, records: Iterable[Any]) -> None:
    """Write dataclass records as JSONL, atomically."""
    write_atomic(path, (json.dumps(to_json_dict(record), ensure_ascii=False) + "\n" for record in records))
