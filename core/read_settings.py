"""Reading the settings of a run: YAML first, then flags, each key checked with its place."""

import re
import sys
from argparse import RawDescriptionHelpFormatter
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser, DefaultHelpFormatter

from core.errors import InputError, nearest
from core.ranges import check_ranges
from core.settings import PASSED_ON, SECTIONS, Settings


def refuse_unknown(keys: dict[str, str]) -> None:
    """Raise for the first dotted key that is no setting.

    Args:
        keys: dotted key -> where it was read.

    Raises:
        InputError: names the place, the key and the nearest right one.
    """
    for key, place in keys.items():
        section, _, name = key.partition(".")
        if section not in SECTIONS:
            raise InputError(f"{place}: unknown section `{section}`; {nearest(section, list(SECTIONS))}")
        if section not in PASSED_ON and name:
            known = [f.name for f in fields(SECTIONS[section])]
            if name not in known:
                raise InputError(
                    f"{place}: unknown setting `{key}`; {nearest(key, [f'{section}.{k}' for k in known])}"
                )


class OnceLoader(yaml.SafeLoader):
    """YAML in which a key stands once: of two sections by one name the first would be lost without a word."""

    def construct_mapping(self, node, deep=False):
        keys = [str(key.value) for key, _ in node.value]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"the key `{twice}` stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


def keys_of_yaml(path: Path) -> dict[str, str]:
    """Dotted keys of a settings file."""
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), OnceLoader)
    except OSError as error:
        raise InputError(f"--config {path}: cannot be read ({error.strerror}).") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"--config {path}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise InputError(
            f"--config {path}: expected sections such as `run:` and `data:`, got {type(values).__name__}."
        )
    keys = {}
    for section, content in values.items():
        if section in SECTIONS and not isinstance(content, dict):
            raise InputError(
                f"--config {path}: `{section}` must hold settings, got {content!r}; leave an empty section out."
            )
        if section in PASSED_ON or not isinstance(content, dict):
            keys[str(section)] = str(path)
        else:
            keys.update({f"{section}.{name}": str(path) for name in content})
        bad = [name for name in content if not isinstance(name, str)] if isinstance(content, dict) else []
        if bad:
            raise InputError(f"--config {path}: `{section}` has the key {bad[0]!r}; names of settings are texts.")
    return keys


def keys_of_flags(argv: list[str]) -> dict[str, str]:
    """Dotted keys of the `--section.key` flags."""
    flags = [word[2:].partition("=")[0] for word in argv if word.startswith("--")]
    return {flag: "command line" for flag in flags if flag not in ("config", "help", "print_config")}


SET_FLAG = re.compile(r"--data\.sets\.([\w-]+)\.(\w+)(?:=(.*))?")


def take_set_flags(argv: list[str]) -> tuple[list[str], list[tuple[str, str, str | None]]]:
    """Take the flags `--data.sets.NAME.FIELD VALUE` out of a command line.

    The parser would let such a flag replace the whole set that the YAML has.

    Returns:
        The other words, and name, field and value of each flag that was taken out.
    """
    rest, taken, words = [], [], iter(argv)
    for word in words:
        flag = SET_FLAG.fullmatch(word)
        if not flag:
            rest.append(word)
            continue
        name, field, value = flag.groups()
        value = next(words, None) if value is None else value
        if value is None:
            raise InputError(f"`{word}` needs a value.")
        taken.append((name, field, None if value == "null" else value))
    return rest, taken


class Help(RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """Help whose description keeps its lines: there are commands in it."""


def parser_of(description: str, usage: str = "") -> ArgumentParser:
    parser = ArgumentParser(
        usage=f"%(prog)s {usage}[--config FILE] [--section.key VALUE ...]",
        description=description,
        exit_on_error=False,
        formatter_class=Help,
    )
    parser.add_argument("--config", action="config", help="YAML file with the settings of one run")
    for section, kind in SECTIONS.items():
        if section in PASSED_ON:
            target = {"lora": "PEFT's LoraConfig", "sft": "TRL's SFTConfig", "dpo": "TRL's DPOConfig"}[section]
            parser.add_argument(f"--{section}", type=dict[str, Any], default={}, help=f"any key of {target}")
        else:
            parser.add_class_arguments(kind, section)
    return parser


KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "dict": "a mapping",
    "NoneType": "null",
}


def plainly(message: str) -> str:
    """The parser's message about a value in words, where it is one about a value."""
    found = re.match(r'Parser key "([\w.]+)": (.*?)(?: Given value type: .*?)? (?:Got|Given) value: (.*)$', message)
    if not found:
        return message
    key, expected, value = found.groups()
    choices = re.search(r"Literal\[(.*?)\]", expected)
    kinds = list(dict.fromkeys(re.findall(r"<class '(\w+)'>", expected)))
    if set(kinds) - set(KINDS) or not (choices or kinds):
        return message
    words = choices[1].replace("'", "").split(", ") if choices else []
    wanted = [*words, *(KINDS[kind] for kind in kinds if kind in KINDS)]
    if words:
        return f"`{key}` must be one of {', '.join(wanted)}, got {value}; {nearest(value, words)}"
    return f"`{key}` must be {' or '.join(wanted)}, got {value}."


def read_settings(description: str, argv: list[str] | None = None, usage: str = "") -> Settings:
    """Settings of one run: YAML first, then flags.

    Args:
        description: text at the top of `--help`.
        argv: command line without the program's name; `sys.argv[1:]` when not given.
        usage: flags of the command beside the settings, with a blank at the end.

    Raises:
        InputError: a file, section, key or value is not usable; names it and the nearest right one.
    """
    argv, set_flags = take_set_flags(sys.argv[1:] if argv is None else argv)
    for number, word in enumerate(argv):
        name, _, value = word.partition("=")
        if name == "--config":
            value = value or (argv[number + 1] if number + 1 < len(argv) else "")
            if not value:
                raise InputError("`--config` needs the name of a YAML file.")
            refuse_unknown(keys_of_yaml(Path(value)))
    refuse_unknown(keys_of_flags(argv))
    try:
        parsed = parser_of(description, usage).parse_args(argv)
    except Exception as error:
        raise InputError(plainly(" ".join(str(error).split()))) from error
    values = parsed.as_dict()
    for name, field, value in set_flags:
        files = values["data"]["sets"].setdefault(name, {})
        if isinstance(files, dict):  # anything else is refused with the ranges
            files[field] = value
    settings = Settings(
        **{
            section: values[section] or {} if section in PASSED_ON else kind(**values[section])
            for section, kind in SECTIONS.items()
        }
    )
    check_ranges(settings)
    return settings
