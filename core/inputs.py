"""Where a run finds its conversations and its collection."""

import re
from dataclasses import replace
from pathlib import Path

from core.errors import InputError
from core.settings import DataSettings, Settings

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
            raise InputError(
                f"{path} is missing; make it with `python -m train.tiny_world --out {folder} --seed "
                f"{settings.data.world_seed}`."
            )
        return path
    return named_file(f"data.{which}", getattr(settings.data, which))


def qrels_file(settings: Settings, which: str) -> Path | None:
    """Path of the gold passages of `train` or `test`, where the settings name a file of their own for them.

    Raises:
        InputError: there is no such file, or the format of the turns has no use for it.
    """
    key, value = "data.qrels", settings.data.qrels
    if which == "train":
        key, value = "data.train_qrels", settings.data.train_qrels
    if not value:
        return None
    if settings.data.format in ("records", "tiny_world"):
        raise InputError(
            f"`{key}` goes with a published `data.format` (topiocqa, qrecc, mtrag), not with "
            f"`{settings.data.format}`, whose turns carry `relevant` themselves; leave it out."
        )
    return named_file(key, value)


def named_file(key: str, value: str | None) -> Path:
    """Path of a file that a setting names.

    Raises:
        InputError: the setting is missing, or the file is.
    """
    if not value:
        raise InputError(f"`{key}` is not set; name the file with `--{key} FILE`.")
    path = Path(value)
    if not path.is_file():
        raise InputError(f"`{key}`: no file at {path}.")
    return path


def corpus_source(settings: Settings) -> str:
    """The collection: path of a file, or name of a data set on the Hub; with `data.pool`, the pool.

    Raises:
        InputError: as `whole_corpus`; or the pool is not made yet.
    """
    if not settings.data.pool:
        return whole_corpus(settings)
    path = pool_file(settings)
    if not path.exists():
        raise InputError(f"{path} is missing; make it with `python -m train.pool` and the settings of this run.")
    return str(path)


def whole_corpus(settings: Settings) -> str:
    """The collection as the settings name it, whether or not there is a pool.

    Raises:
        InputError: the setting is missing, or names neither a file nor a data set; says what to do.
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


def pool_file(settings: Settings) -> Path:
    """Where `data.pool` keeps its collection."""
    return settings.run_dir / "data" / "pool.jsonl"


def same_data(settings: Settings) -> DataSettings:
    """Data settings with which another run folder reads the very same turns and collection."""
    data = settings.data
    if data.format == "tiny_world":
        files = {which: str(data_file(settings, which)) for which in ("train", "test", "corpus")}
        data = replace(data, format="records", **files)
    if data.pool:
        data = replace(data, corpus=corpus_source(settings), pool=0)
    return data
