"""The data sets of a run, and the files of their conversations and collections."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from core.data_settings import DataFiles, DataSettings
from core.errors import InputError

FILE_SUFFIXES = (".jsonl", ".json", ".jsonlines", ".json-lines", ".ndjson", ".tsv", ".csv", ".txt", ".parquet", ".gz")
SPLITS = ("train", "development", "test")
PUBLISHED = ("topiocqa", "qrecc", "mtrag")  # formats with qrels in a separate file


@dataclass
class DataSource(DataFiles):
    """The files of one data set, and the shares of its conversations that are held out of training.

    `name` is empty in a run without `data.sets`. `corpus` is a file or the name of a Hub data set. `holdout` is 0 if
    `test` is set. Methods raise an `InputError` that names the setting if a file is missing or does not suit `format`.
    """

    name: str
    format: str
    holdout: float = 0.0
    development_share: float = 0.0

    def setting(self, field: str) -> str:
        """The full name of a setting of this data set, for messages."""
        return f"data.sets.{self.name}.{field}" if self.name else f"data.{field}"

    def field_of(self, split: str) -> str:
        """The field whose file contains a split: `test` for test turns in a separate file, else `train`."""
        return "test" if split == "test" and not self.holdout else "train"

    def has(self, split: str) -> bool:
        """Whether the data set has turns of a split."""
        return bool(getattr(self, self.field_of(split))) and (split != "development" or self.development_share > 0)

    def turns_file(self, split: str) -> Path:
        """The file that contains a split. It must be set and exist."""
        return self._file(self.field_of(split))

    def qrels_file(self, split: str) -> Path | None:
        """The file with the gold passages of a split, if one is set; it must exist and suit the format."""
        field = "qrels" if self.field_of(split) == "test" else "train_qrels"
        if not getattr(self, field):
            return None
        if self.format not in PUBLISHED:
            raise InputError(
                f"`{self.setting(field)}` needs a published `data.format` ({', '.join(PUBLISHED)}), got "
                f"`{self.format}`, whose turns contain `relevant` themselves; remove the setting."
            )
        return self._file(field)

    def _file(self, field: str) -> Path:
        key, value = self.setting(field), getattr(self, field)
        if not value:
            hint = ", or hold out some turns of `train` with `--data.holdout 0.1`" if field == "test" else ""
            raise InputError(f"`{key}` is not set; name the file with `--{key} FILE`{hint}.")
        if not Path(value).is_file():
            raise InputError(f"`{key}`: no file at {value}.")
        return Path(value)

    def check_corpus(self) -> None:
        """Check that the collection is a file, or looks like the name of a Hub data set."""
        key = self.setting("corpus")
        if not self.corpus:
            raise InputError(f"`{key}` is not set; name a file or a data set of the Hub with `--{key} FILE_OR_NAME`.")
        if not Path(self.corpus).is_file() and not is_hub_name(self.corpus):
            raise InputError(f"`{key}`: no file at {self.corpus}.")


def data_sources(data: DataSettings, run_dir: Path) -> list[DataSource]:
    """The data sets of a run: those of `data.sets`, or the one of the other `data` settings. The files of the tiny
    world are in `<run_dir>/data`."""
    if data.format == "tiny_world":
        files = {field: str(run_dir / "data" / f"{field}.jsonl") for field in ("train", "test", "corpus")}
        return [DataSource("", "records", **files)]
    return [
        DataSource(
            name,
            data.format,
            **{field.name: getattr(files, field.name) for field in fields(DataFiles)},
            holdout=0.0 if files.test else data.holdout,
            development_share=data.development_share,
        )
        for name, files in (data.sets or {"": data}).items()
    ]


def with_pools(sources: Sequence[DataSource], run_dir: Path) -> list[DataSource]:
    """The data sets with their pools (`data.pool`) as collections."""
    names = [f"pool-{source.name}.jsonl" if source.name else "pool.jsonl" for source in sources]
    return [replace(source, corpus=str(run_dir / "data" / name)) for source, name in zip(sources, names, strict=True)]


def sources_with(sources: Sequence[DataSource], split: str) -> list[DataSource]:
    """The data sets that have turns of a split; raises an InputError if none does."""
    chosen = [source for source in sources if source.has(split)]
    if not chosen and sources[0].name:
        share = ", or hold out some turns of `train` with `--data.holdout 0.1`" if split == "test" else ""
        field = sources[0].field_of(split)
        raise InputError(f"no set of `data.sets` has a `{field}` file; set it in one of them{share}.")
    for source in chosen or sources[:1]:
        source.turns_file(split)
    return chosen


def by_data_set(values: Mapping[str, Any]) -> Any:
    """The value of each data set as stored in a manifest: by name, or the bare value in a run without `data.sets`."""
    return values[""] if "" in values else dict(values)


def is_hub_name(source: str) -> bool:
    """Whether a text has the form `owner/name` or `owner/name:split` and no suffix of a file."""
    name = re.fullmatch(r"[\w-][\w.-]*/[\w.-]+(:\S+)?", source)
    return name is not None and Path(source).suffix.lower() not in FILE_SUFFIXES
