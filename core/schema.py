"""Dataclasses of settings and flags: types with ranges, readable descriptions, and validation with pydantic."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt
from docstring_parser.google import parse
from pydantic import ConfigDict, StringConstraints, TypeAdapter, ValidationError

from core.errors import InputError, did_you_mean, nearest, short

T = TypeVar("T")

Positive = Annotated[int, Ge(1)]
NonNegative = Annotated[int, Ge(0)]
Fraction = Annotated[float, Ge(0), Le(1)]
Seed = Annotated[int, Ge(0), Le(2**32 - 1)]
Text = Annotated[str, StringConstraints(pattern=r"\S")]
Dtype = Literal["float32", "bfloat16", "float16"]

NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a string", Path: "a path"}
CONSTRAINTS = {
    Ge: ">= {0.ge}", Gt: "> {0.gt}", Le: "<= {0.le}", Lt: "< {0.lt}", StringConstraints: "that is not empty",
}  # fmt: skip


class Validated:
    """Base class of settings and flags: unknown names, wrong types, infinity and NaN are errors."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Setting(NamedTuple):
    """A field of such a dataclass: its full name, such as `rewriter.model`, and the dataclass that declares it.

    `default` is a string, empty if there is no default or the default is empty.
    """

    name: str
    section: type
    type: Any
    default: str
    help: str
    positional: bool
    required: bool


def settings_of(section: type, prefix: str = "") -> Iterator[Setting]:
    """Yield the fields of a dataclass and of nested ones, with help from `Args:` in docstrings of it and its bases."""
    types = get_type_hints(section, include_extras=True)
    args = [arg for base in reversed(section.__mro__) for arg in parse(base.__doc__ or "").params]
    helps = {arg.arg_name: " ".join(arg.description.split()) for arg in args}
    for field in fields(section):
        name, kind = prefix + field.name, types[field.name]
        if is_dataclass(kind):
            yield from settings_of(kind, f"{name}.")
            continue
        value = field.default if field.default_factory is MISSING else field.default_factory()
        text = "" if value in (MISSING, None, "", [], {}) else value
        default = str(text) if isinstance(text, str | Path) else json.dumps(text)
        positional = field.metadata.get("positional", False)
        yield Setting(name, section, kind, default, helps[field.name], positional, value is MISSING)


def title_of(section: type) -> str:
    """The first sentence of a dataclass's docstring, without the full stop."""
    return section.__doc__.partition("\n")[0].rstrip(".")


def split_type(annotation: Any) -> tuple[Any, tuple[Any, ...], bool]:
    """Split an annotation, such as `Annotated[int, Ge(1)] | None`: type, constraints, and whether None is allowed."""
    if get_origin(annotation) in (Union, UnionType):
        (member,) = (member for member in get_args(annotation) if member is not NoneType)
        return *split_type(member)[:2], True
    if get_origin(annotation) is Annotated:
        return annotation.__origin__, annotation.__metadata__, False
    return annotation, (), False


def describe(annotation: Any) -> str:
    """Describe a type, its range and its choices in words, such as "a whole number >= 1, or null"."""
    kind, constraints, optional = split_type(annotation)
    members = get_args(kind)
    if get_origin(kind) is Literal:
        text = f"one of {', '.join(members)}"
    elif get_origin(kind) is list:
        text = f"a list, each item {describe(members[0])}"
    elif get_origin(kind) is dict:
        text = "a mapping" if members[1] is Any else f"a mapping, each value {describe(members[1])}"
    elif is_dataclass(kind):
        text = f"a mapping with {', '.join(field.name for field in fields(kind))}"
    else:
        text = NAMES[kind]
    if constraints:
        text += " " + " and ".join(CONSTRAINTS[type(constraint)].format(constraint) for constraint in constraints)
    return f"{text}, or null" if optional else text


def type_at(kind: Any, path: Sequence[str | int], place: str = "") -> Any:
    """The type of a setting, by its path from a dataclass: field names, mapping keys and list indices.

    Raises:
        InputError: the setting is unknown; the message starts with `place` and suggests the closest known one.
    """
    for depth, name in enumerate(path):
        kind, _, _ = split_type(kind)
        if is_dataclass(kind):
            types = get_type_hints(kind, include_extras=True)
            if name not in types:
                key, known = name_of(path[: depth + 1]), [name_of([*path[:depth], other]) for other in types]
                raise InputError(f"{place}unknown setting `{key}`; {nearest(key, known)}")
            kind = types[name]
        elif get_origin(kind) in (list, dict):
            kind = get_args(kind)[-1]
    return kind


def name_of(path: Sequence[str | int]) -> str:
    """A setting's full name, such as `rewriter.examples[0].rewrite`."""
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return name.removeprefix(".").rstrip("_")


adapter_of = cache(TypeAdapter)


def validate(kind: type[T], values: dict[str, Any], prefix: str = "") -> T:
    """Build a dataclass from plain values, nested like its fields. Messages put `prefix` before names.

    Raises:
        InputError: a name is unknown, or a value is missing or not allowed.
    """
    try:  # in strict mode, pydantic builds dataclasses only from JSON
        return adapter_of(kind).validate_json(json.dumps(values, default=str))
    except ValidationError as caught:
        unknown_first = sorted(caught.errors(), key=lambda error: error["type"] != "unexpected_keyword_argument")
        raise InputError(explain(kind, unknown_first[0], prefix)) from caught


def explain(kind: type, error: dict[str, Any], prefix: str = "") -> str:
    """Describe a pydantic error in a sentence."""
    if error["type"] == "value_error":  # raised by `__post_init__`
        return str(error["ctx"]["error"])
    if error["type"] == "json_invalid":  # a command-line argument in another encoding
        return f"a value is not valid Unicode text: {error['msg']}."
    expected = type_at(kind, error["loc"])
    key, requirement = prefix + name_of(error["loc"]), describe(expected)
    if error["type"] == "missing":
        return f"`{key}` is not set; it must be {requirement}."
    if error["type"] == "finite_number":
        requirement = "a finite number"
    choices = get_args(split_type(expected)[0]) if error["type"] == "literal_error" else ()
    hint = did_you_mean(str(error["input"]), list(choices))
    return f"`{key}` must be {requirement}, got {short(error['input'])}{f'; {hint}' if hint else '.'}"


def texts_of(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the strings in nested values, with their full names."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from texts_of(item, f"{name}.{key}".removeprefix("."))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from texts_of(item, f"{name}[{number}]")
