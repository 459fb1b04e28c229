"""Typed records from JSON objects and back. Errors name the place, the field, the value and what is expected."""

from dataclasses import MISSING, Field, fields, is_dataclass
from functools import lru_cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from core.errors import InputError, fields_of, short
from core.records import Hit

T = TypeVar("T")
EXPECTED = {
    "string_type": "a text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "an object",
    "dataclass_type": "an object",
}


@lru_cache
def adapter_of(kind: type[T]) -> TypeAdapter[T]:
    return TypeAdapter(kind)


def parse_record(kind: type[T], record: dict[str, Any], place: str) -> T:
    """A record of a type from a JSON object; fields that are null count as missing.

    Args:
        kind: a dataclass of `core.records`.
        record: the JSON object; fields that the type does not have are ignored.
        place: file and line, for the message.

    Raises:
        InputError: a field is missing or has a wrong value; begins with `place`.
    """
    values = {key: value for key, value in record.items() if value is not None}
    try:
        return adapter_of(kind).validate_python(values)
    except ValidationError as error:
        raise InputError(f"{place}: {explain(error.errors()[0], values)}") from error


def explain(error: dict[str, Any], record: dict[str, Any]) -> str:
    """One pydantic error as a sentence."""
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"]).lstrip(".")
    if error["type"] in ("missing", "missing_argument") and len(error["loc"]) == 1:
        return f"the field `{path}` is missing (there are: {fields_of(record)})."
    if error["type"] in ("missing", "missing_argument"):
        return f"`{path}` is missing."
    expected = EXPECTED.get(error["type"])
    if error["type"] == "value_error":
        expected = str(error["ctx"]["error"])
    if error["type"] == "literal_error":
        expected = error["ctx"]["expected"]
    requirement = f"must be {expected}" if expected else error["msg"].replace("Input should", "must")
    return f"`{path}` {requirement}, got {short(error['input'])}."


def to_json_dict(record: Any) -> Any:
    """A dataclass record as a JSON-ready dict; fields that are empty by default, and are empty, are left out."""
    if isinstance(record, Hit):
        return record._asdict()
    if is_dataclass(record):
        values = {field: getattr(record, field.name) for field in fields(record)}
        return {
            field.name: to_json_dict(value)
            for field, value in values.items()
            if value or value != empty_default(field)
        }
    if isinstance(record, dict):
        return {key: to_json_dict(value) for key, value in record.items()}
    if isinstance(record, list | tuple):
        return [to_json_dict(value) for value in record]
    return record


def empty_default(field: Field) -> Any:
    """The default of a dataclass field where it is None or empty; else `MISSING`."""
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return default if default is None or default in ("", (), [], {}) else MISSING
