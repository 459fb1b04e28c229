"""Files of records: JSON lines, or a `.json` file with a list."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from core.artifacts import json_object, write_atomic
from core.errors import InputError
from core.json_records import parse_record, to_json_dict
from core.records import Turn

T = TypeVar("T")


def read_json_texts(path: Path) -> Iterator[tuple[int, str, str]]:
    """Number, place and JSON text of each record.

    Raises:
        InputError: the file cannot be read, or holds a list that is not valid JSON (names the line).
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            is_list = path.suffix == ".json" and file.read(1 << 12).lstrip().startswith("[")
            file.seek(0)
            if is_list:
                for number, record in enumerate(json.load(file), 1):
                    yield number, f"{path}: record {number}", json.dumps(record)
                return
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, f"{path}:{number}", line
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start}: {error.reason}).") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}: not valid JSON: {error.msg} at column {error.colno}.") from error
    except (ValueError, RecursionError) as error:  # a number that is too long, lists too deep in each other
        raise InputError(f"{path}: cannot be read as JSON: {error}.") from error


def read_records(kind: type[T], path: Path) -> Iterator[tuple[str, T]]:
    """Place and record of each record.

    Args:
        kind: a dataclass; fields that it does not have are ignored.
        path: the file.

    Raises:
        InputError: a record is not usable; names file, line or record, field and value.
    """
    for _, place, text in read_json_texts(path):
        yield place, parse_record(kind, json_object(text, place), place)


def unique_turns(path: Path, turns: Iterable[tuple[str, Turn]]) -> list[Turn]:
    """The turns of a file, in its order.

    Args:
        path: the file.
        turns: the place and the turn of each record.

    Raises:
        InputError: an id is repeated, or there is no turn.
    """
    by_id: dict[str, Turn] = {}
    for place, turn in turns:
        if turn.id in by_id:
            raise InputError(f"{place}: the id `{turn.id}` is repeated; ids of turns must be unique.")
        by_id[turn.id] = turn
    if not by_id:
        raise InputError(f"{path}: no turns in it; docs/data.md has the format.")
    return list(by_id.values())


def write_records(path: Path, records: Iterable[Any]) -> None:
    """Write dataclass records as JSON lines, whole or not at all."""
    write_atomic(path, (json.dumps(to_json_dict(record), ensure_ascii=False) + "\n" for record in records))
