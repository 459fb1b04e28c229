"""Convert JSON objects to typed records and back. Errors name the place, the field, the value and the requirement."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from core.artifacts import json_object, read_json_texts, write_atomic
from core.errors import InputError, short
from core.records import Hit
from core.schema import adapter_of, name_of

T = TypeVar("T")
EXPECTED = {
    "string_type": "a string",
    "string_pattern_mismatch": "a string that is not empty",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "an object",
    "dataclass_type": "an object",
}


def parse_record(kind: type[T], record: dict[str, Any], place: str) -> T:
    """Convert a JSON object to a record; null fields count as missing, and unknown fields are ignored.

    Raises:
        InputError: a field is missing or has a wrong value; the message starts with `place`.
    """
    values = {key: value for key, value in record.items() if value is not None}
    try:
        return adapter_of(kind).validate_python(values)
    except ValidationError as error:
        raise InputError(f"{place}: {explain(error.errors()[0], values)}") from error


def explain(error: dict[str, Any], record: dict[str, Any]) -> str:
    """Describe a pydantic error in a sentence."""
    path, context = name_of(error["loc"]), error.get("ctx", {})
    if error["type"] in ("missing", "missing_argument"):
        if len(error["loc"]) == 1:
            names = ", ".join(f"`{name}`" for name in list(record)[:8]) or "none"
            return f"the field `{path}` is missing (fields: {names:.200})."
        return f"`{path}` is missing."
    expected = EXPECTED.get(error["type"]) or context.get("error") or context.get("expected")
    requirement = f"must be {expected}" if expected else error["msg"].replace("Input should", "must")
    return f"`{path}` {requirement}, got {short(error['input'])}."


def to_json_dict(record: Any) -> Any:
    """Convert a record to a JSON-serializable dict; fields that are empty by default are omitted if empty."""
    if record is None or isinstance(record, str | int | float):
        return record
    if isinstance(record, Hit):
        return record._asdict()
    if is_dataclass(record):
        values = {}
        for field in fields(record):
            value = getattr(record, field.name)
            default = field.default_factory() if callable(field.default_factory) else field.default
            if value or isinstance(value, int | float) or value != default:
                values[field.name] = to_json_dict(value)
        return values
    if isinstance(record, dict):
        return {key: to_json_dict(value) for key, value in record.items()}
    return [to_json_dict(value) for value in record]


def to_json_line(record: Any) -> str:
    """Format a record as a line of JSONL, including the line break."""
    return json.dumps(to_json_dict(record), ensure_ascii=False, allow_nan=False) + "\n"


def read_records(kind: type[T], path: Path) -> Iterator[tuple[str, T]]:
    """Yield the place and the parsed record of each line of a JSONL file, or of each item of a `.json` list.

    Raises:
        InputError: a record is invalid; the message names file, line or record, field and value.
    """
    for _, place, text in read_json_texts(path):
        yield place, parse_record(kind, json_object(text, place), place)


def write_records(path: Path, records: Iterable[Any]) -> None:
    """Write records as JSONL, atomically."""
    write_atomic(path, map(to_json_line, records))
