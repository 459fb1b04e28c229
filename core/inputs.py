"""Where a run finds its conversations and its collection."""

import re
from pathlib import Path

from core.errors import InputError
from core.settings import Settings

FILE_SUFFIXES = (".jsonl", ".json", ".jsonlines", ".json-lines", ".ndjson", ".tsv", ".csv", ".txt", ".parquet", ".gz")


def data_file(settings: Settings, which: str) -> Path:
    """Path of `train` or `test`, and of the tiny world's `corpus`.

    Raises:
        InputError: the setting is missing, or the file is; says which and what to do.
    """
    if settings.data.format == "tiny_world":
        folder = settings.run_dir / "data"
        path = folder / f"{which}.jsonl"
        if not path.exists():
            raise InputError(f"{path} is missing; make it with `python -m train.tiny_world --out {folder}`.")
        return path
    named = getattr(settings.data, which)
    if not named:
        raise InputError(f"`data.{which}` is not set; name the file with `--data.{which} FILE`.")
    path = Path(named)
    if not path.is_file():
        raise InputError(f"`data.{which}`: no file at {path}.")
    return path


def corpus_source(settings: Settings) -> str:
    """The collection: path of a file, or name of a data set on the Hub.

    Raises:
        InputError: the setting is missing, or names neither; says what to do.
    """
    named = settings.data.corpus
    if settings.data.format == "tiny_world":
        return str(data_file(settings, "corpus"))
    if not named:
        raise InputError(
            "`data.corpus` is not set; name a file or a data set of the Hub with `--data.corpus FILE_OR_NAME`."
        )
    if Path(named).is_file() or is_hub_name(named):
        return named
    raise InputError(f"`data.corpus`: no file at {named}.")


def is_hub_name(source: str) -> bool:
    """Whether a text reads `owner/name` or `owner/name:split`, and not like a file."""
    name = re.fullmatch(r"[\w-][\w.-]*/[\w.-]+(:\S+)?", source)
    return name is not None and Path(source).suffix.lower() not in FILE_SUFFIXES
