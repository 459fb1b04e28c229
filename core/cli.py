"""Command lines: parse YAML and flags into dataclasses, and report bad input in one line with an exit status.

The dataclasses (`core.settings`, and those for the flags of a command) declare types, ranges, choices and help.
"""

import argparse
import errno
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, fields
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import yaml

from core.distributed import check_launch, connected, process
from core.errors import InputError, first_line, nearest, short
from core.schema import describe, settings_of, split_type, title_of, type_at, validate
from core.settings import Settings

T = TypeVar("T")


class Loader(yaml.SafeLoader):
    """YAML loader that rejects repeated keys (YAML would silently use the last one) and reads `1e-4` as a number."""

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                message = f"the key `{key.value}` appears twice"
                raise yaml.constructor.ConstructorError(None, None, message, key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), "-+0123456789")


def load_yaml(text: str | bytes, place: str) -> Any:
    """Parse a YAML text; error messages start with `place`."""
    try:
        value = yaml.load(text, Loader)
        json.dumps(value, default=str)  # fails for a value that contains itself, or has a date as a key
        return value
    except yaml.MarkedYAMLError as error:
        raise InputError(f"{place}line {error.problem_mark.line + 1} is not valid YAML: {error.problem}.") from error
    except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(f"{place}not valid YAML: {first_line(error)}.") from error


def read_yaml(path: str) -> dict[str, Any]:
    """Read the settings in a file, by section, and check every name."""
    place = f"--config {path}: "
    try:
        sections = load_yaml(Path(path).read_bytes(), place)
    except OSError as error:
        raise InputError(f"{place}cannot be read ({error.strerror}).") from error
    if not isinstance(sections, dict):
        raise InputError(f"{place}expected sections such as `run:` and `data:`, got {short(sections)}.")
    for section, content in sections.items():
        type_at(Settings, [section], place)
        for name in content if isinstance(content, dict) else ():
            type_at(Settings, [section, name], place)
    return sections


def parse_value(text: Any, annotation: Any, flag: str) -> Any:
    """Parse the value of a flag: strings, paths and choices stay unchanged, other types are YAML; `null` is None.

    `text` is a list of strings for a flag with several values, and True for a flag without a value.
    """
    kind, _, optional = split_type(annotation)
    if isinstance(text, list):
        return [parse_value(item, get_args(kind)[0], flag) for item in text]
    if text is True or kind in (str, Path) or get_origin(kind) is Literal:
        return None if optional and text == "null" else text
    return load_yaml(text, f"`{flag}`: ")


class Parser(argparse.ArgumentParser):
    """Argument parser that raises InputError."""

    def error(self, message: str) -> None:
        raise InputError(f"{message}; `--help` lists the flags.")


def build_parser(kind: type, description: str | None, usage: str | None = None) -> Parser:
    """Build a parser with a flag for each field of a dataclass, and `--section.key` for fields of nested dataclasses.

    The parser's result omits flags that are not set. A trailing `_`, which keeps a field's name from being a Python
    keyword, is not part of the flag. In the dataclass itself, a `bool` is a switch, a list takes several values, and
    `metadata={"positional": True}` makes a positional argument. In nested dataclasses, a `bool` flag without a value
    means `true`.
    """
    module = sys.modules["__main__"].__spec__
    parser = Parser(
        prog=f"python -m {module.name.removesuffix('.__main__')}" if module else None,
        usage=usage,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    for section, settings in groupby(settings_of(kind), key=attrgetter("section")):
        group = parser.add_argument_group(title_of(section))
        for setting in settings:
            base, _, optional = split_type(setting.type)
            note = "; required" if setting.required else f"; default {setting.default}" if setting.default else ""
            options = {"help": f"{setting.help} ({describe(setting.type)}{note})".replace("%", "%%")}
            if base is bool and section is kind:
                options["action"] = "store_true"
            else:
                options["metavar"] = setting.name.split(".")[-1].rstrip("_").upper()
            if base is bool and section is not kind:
                options |= {"nargs": "?", "const": "true"}
            if get_origin(base) is list and section is kind:
                options["nargs"] = "+"
            if setting.positional:
                group.add_argument(setting.name, **options, **({"nargs": "?"} if optional else {}))
            else:
                group.add_argument(f"--{setting.name.rstrip('_')}", dest=setting.name, **options)
    return parser


def parse_known_flags(kind: type[T], description: str | None, argv: list[str] | None = None) -> tuple[T, list[str]]:
    """Parse the flags of a command, and also return the unknown words of the command line.

    Args:
        kind: a dataclass, one field per flag.
        description: text at the top of `--help`.
        argv: command line without the program's name; `sys.argv[1:]` by default.

    Raises:
        InputError: a flag has no value, a required flag is missing, or a value is not allowed.
    """
    flags, rest = build_parser(kind, description).parse_known_args(argv)
    values = {name: parse_value(text, type_at(kind, [name]), f"--{name}") for name, text in vars(flags).items()}
    return validate(kind, values, "--"), rest


def parse_flags(kind: type[T], description: str | None, argv: list[str] | None = None) -> T:
    """Parse the flags of a command; see `parse_known_flags`. An unknown flag is an InputError."""
    _, rest = build_parser(kind, description).parse_known_args(argv)
    if rest:  # checked before missing flags: it may be a missing one, mistyped
        names = [f"--{flag.name.rstrip('_')}" for flag in fields(kind)]
        raise InputError(f"unknown flag `{rest[0]}`; {nearest(rest[0], names)}")
    return parse_known_flags(kind, description, argv)[0]


def read_settings(description: str | None, argv: list[str] | None = None) -> Settings:
    """Read the settings of a run: YAML files first, then flags, which may set keys of a mapping (`--dpo.beta`).

    `description` and `argv` are those of `parse_known_flags`.

    Raises:
        InputError: a file, section, key or value is invalid; the message names it and the closest valid one.
    """
    argv = sys.argv[1:] if argv is None else argv
    parser = build_parser(Settings, description, "%(prog)s [--config FILE] [--section.key VALUE ...]")
    parser.add_argument("--config", action="append", default=[], help="YAML file with the settings of one run")
    parser.add_argument(
        "--print_config", action="store_true", default=False, help="print all settings as YAML and exit"
    )
    known_flags = {"config", "print_config", "help", *(setting.name for setting in settings_of(Settings))}
    for name in dict.fromkeys(word[2:].partition("=")[0] for word in argv if word.startswith("--")):
        if name not in known_flags:  # a key of a mapping
            type_at(Settings, name.split("."), "command line: ")
            parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    flags = vars(parser.parse_args(argv))
    files, print_config = flags.pop("config"), flags.pop("print_config")
    values: dict[str, Any] = {"run": {}}
    for path in files:
        for section, content in read_yaml(path).items():
            are_mappings = isinstance(content, dict) and isinstance(values.get(section), dict)
            values[section] = values[section] | content if are_mappings else content
    for key, text in flags.items():
        *parents, name = key.split(".")
        target = values
        for parent in parents:
            if not isinstance(target.get(parent), dict):
                target[parent] = {}
            target = target[parent]
        target[name] = parse_value(text, type_at(Settings, [*parents, name]), key)
    settings = validate(Settings, values)
    if print_config:
        print(yaml.safe_dump(asdict(settings), sort_keys=False), end="")
        raise SystemExit(0)
    return settings


def interrupt(number: int, frame: object) -> None:
    """Handle SIGINT and SIGTERM; `run_command` then exits with the status of the signal."""
    raise KeyboardInterrupt(number)


def run_command(main: Callable[[], Any], resumes: bool = False) -> None:
    """Run the `main` of a command, in one or several processes. Bad input prints one line and exits with status 2;
    Ctrl-C and SIGTERM print one line, which tells whether rerunning resumes, and exit with status 130 and 143."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, interrupt)
        check_launch()
        if process()[1] > 1:
            connected()
        main()
        if process()[1] > 1:
            connected().destroy_process_group()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt as stop:
        if process()[0] == 0:
            print("stopped; rerun the command to resume." if resumes else "stopped.", file=sys.stderr)
        raise SystemExit(128 + (stop.args[0] if stop.args else signal.SIGINT)) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of stdout has closed the pipe
        raise SystemExit(1) from None
    except OSError as error:
        if error.errno is None:
            raise
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "; free some space and rerun the command" if full else ""
        print(f"error: {error.filename or 'file'}: {error.strerror}{hint}.", file=sys.stderr)
        raise SystemExit(2) from None
