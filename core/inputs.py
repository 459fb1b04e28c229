"""Where a run finds its conversations and its collection."""

from dataclasses import replace
from pathlib import Path

from core.errors import InputError
from core.settings import DataSettings, Settings


def data_file(settings: Settings, which: str) -> Path:
    """Path of `train`, `test` or `corpus`; with `data.pool`, the corpus is the pool.

    Raises:
        InputError: the setting is missing, or the file is; says which and what to do.
    """
    if which == "corpus" and settings.data.pool:
        path = pool_file(settings)
        if not path.exists():
            raise InputError(f"{path} is missing; make it with `python -m train.pool` and the settings of this run.")
        return path
    return source_file(settings, which)


def source_file(settings: Settings, which: str) -> Path:
    """Path of `train`, `test` or `corpus` as the settings name it, whether or not there is a pool.

    Raises:
        InputError: as `data_file`.
    """
    if settings.data.format == "tiny_world":
        folder = settings.run_dir / "data"
        path = folder / f"{which}.jsonl"
        if not path.exists():
            raise InputError(f"{path} is missing; make it with `python -m train.tiny_world --out {folder}`.")
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


def pool_file(settings: Settings) -> Path:
    """Where `data.pool` keeps its collection."""
    return settings.run_dir / "data" / "pool.jsonl"


def same_data(settings: Settings) -> DataSettings:
    """Data settings with which another run folder reads the very same turns and collection."""
    data = settings.data
    if data.format == "tiny_world":
        files = {which: str(source_file(settings, which)) for which in ("train", "test", "corpus")}
        data = replace(data, format="records", **files)
    if data.pool:
        data = replace(data, corpus=str(data_file(settings, "corpus")), pool=0)
    return data
