"""Where a run finds its conversations and its collections."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from core.data_settings import DataSettings
from core.errors import InputError
from core.settings import Settings

FILE_SUFFIXES = (".jsonl", ".json", ".jsonlines", ".json-lines", ".ndjson", ".tsv", ".csv", ".txt", ".parquet", ".gz")
SPLITS = ("train", "development", "test")


def set_names(settings: Settings) -> list[str]:
    """The names of `data.sets`; one empty name in a run without them."""
    return list(settings.data.sets) or [""]


def by_set(values: dict[str, Any]) -> Any:
    """What a stage records of its data sets: the value of each by name, or in a run without `data.sets` the value."""
    return values[""] if "" in values else values


def key_of(field: str, name: str) -> str:
    """The setting of a data set's `train`, `test`, `qrels`, `train_qrels` or `corpus`."""
    return f"data.sets.{name}.{field}" if name else f"data.{field}"


def entry_of(settings: Settings, field: str, name: str) -> str | None:
    """The value of that setting."""
    return getattr(settings.data.sets[name] if name else settings.data, field)


def file_with(settings: Settings, split: str, name: str = "") -> str:
    """The file that has a split of a data set: `test` for test turns that have a file of their own, else `train`."""
    held_out = settings.data.test_share is not None and not entry_of(settings, "test", name)
    return "test" if split == "test" and not held_out else "train"


def sets_with(settings: Settings, split: str) -> list[str]:
    """The names of the data sets that have turns of a split (`train`, `development` or `test`)."""
    if split == "development" and not settings.data.development_share:
        return []
    if settings.data.format == "tiny_world":
        return [""]
    return [name for name in set_names(settings) if entry_of(settings, file_with(settings, split, name), name)]


def splits_of(settings: Settings) -> list[str]:
    """The splits that the run has turns of."""
    return [split for split in SPLITS if sets_with(settings, split)]


def check_files(settings: Settings, split: str) -> None:
    """Make sure that a data set has turns of a split, and that their files are there.

    Raises:
        InputError: not so; names the setting.
    """
    names = sets_with(settings, split)
    if not names and settings.data.sets:
        file = file_with(settings, split, set_names(settings)[0])
        share = " or hold turns out with `--data.test_share 0.3333`" if split == "test" else ""
        raise InputError(f"no set of `data.sets` has a `{file}` file; name it in one of them{share}.")
    for name in names or [""]:
        data_file(settings, file_with(settings, split, name), name)


def data_file(settings: Settings, which: str, name: str = "") -> Path:
    """Path of a data set's `train` or `test` file, and of the tiny world's `corpus`.

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
    return named_file(key_of(which, name), entry_of(settings, which, name))


def qrels_file(settings: Settings, which: str, name: str = "") -> Path | None:
    """Path of the gold passages of a `train` or `test` file, where the settings name a file of their own for them.

    Raises:
        InputError: there is no such file, or the format of the turns has no use for it.
    """
    field = "train_qrels" if which == "train" else "qrels"
    key, value = key_of(field, name), entry_of(settings, field, name)
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


def corpus_source(settings: Settings, name: str = "") -> str:
    """A data set's collection: path of a file, or name of a data set on the Hub; with `data.pool`, the pool.

    Raises:
        InputError: as `whole_corpus`; or the pool is not made yet.
    """
    if not settings.data.pool:
        return whole_corpus(settings, name)
    path = pool_file(settings, name)
    if not path.exists():
        raise InputError(f"{path} is missing; make it with `python -m train.pool` and the settings of this run.")
    return str(path)


def whole_corpus(settings: Settings, name: str = "") -> str:
    """A data set's collection as the settings name it, whether or not there is a pool.

    Raises:
        InputError: the setting is missing, or names neither a file nor a data set; says what to do.
    """
    if settings.data.format == "tiny_world":
        return str(data_file(settings, "corpus"))
    key, source = key_of("corpus", name), entry_of(settings, "corpus", name)
    if not source:
        raise InputError(f"`{key}` is not set; name a file or a data set of the Hub with `--{key} FILE_OR_NAME`.")
    if Path(source).is_file() or is_hub_name(source):
        return source
    raise InputError(f"`{key}`: no file at {source}.")


def is_hub_name(source: str) -> bool:
    """Whether a text reads `owner/name` or `owner/name:split`, and not like a file."""
    name = re.fullmatch(r"[\w-][\w.-]*/[\w.-]+(:\S+)?", source)
    return name is not None and Path(source).suffix.lower() not in FILE_SUFFIXES


def pool_file(settings: Settings, name: str = "") -> Path:
    """Where `data.pool` keeps the collection of a data set."""
    return settings.run_dir / "data" / (f"pool-{name}.jsonl" if name else "pool.jsonl")


def same_data(settings: Settings) -> DataSettings:
    """Data settings with which another run folder reads the very same turns and collections."""
    data = settings.data
    if data.format == "tiny_world":
        files = {which: str(data_file(settings, which)) for which in ("train", "test", "corpus")}
        data = replace(data, format="records", **files)
    if data.pool and data.sets:
        pools = {name: replace(files, corpus=corpus_source(settings, name)) for name, files in data.sets.items()}
        data = replace(data, sets=pools, pool=0)
    elif data.pool:
        data = replace(data, corpus=corpus_source(settings), pool=0)
    return data
