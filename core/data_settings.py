"""Settings of the conversations and the collection."""

import re
from dataclasses import dataclass, field, fields
from typing import Annotated, Literal

from annotated_types import Ge, Lt

from core.errors import InputError
from core.schema import NonNegative, Validated


@dataclass(kw_only=True)
class DataFiles(Validated):
    """Files of a data set.

    Args:
        train: turns to train on.
        test: held-out turns to evaluate on.
        qrels: gold passages of the test turns, for a published set that keeps them in a separate file.
        train_qrels: the same for the training turns.
        corpus: the collection: a file (JSONL, TSV, parquet) or a data set of the Hub (`owner/name`).
    """

    train: str | None = None
    test: str | None = None
    qrels: str | None = None
    train_qrels: str | None = None
    corpus: str | None = None


@dataclass(kw_only=True)
class DataSettings(DataFiles):
    """Conversations and collection.

    Args:
        format: `records` reads the project's own files; `topiocqa`, `qrecc` and `mtrag` read the published
            files (docs/data.md); `tiny_world` generates its files.
        sets: several data sets instead of the five files above: name -> its `train`, `test`, `qrels`, `train_qrels`
            and `corpus`. Each turn searches the collection of its own set.
        holdout: for a set without a `test` file: share of the conversations in its `train` file to hold out for
            evaluation, taken from the end. The number of conversations is rounded up, except for fractions below
            0.01, so that 0.3333 means a third.
        development_share: share of the remaining conversations to hold out for choosing settings, also taken from the
            end and rounded in the same way.
        evaluate_on: evaluate on the `test` turns or on the `development` turns.
        on_bad: `stop` the run at a passage that cannot be used, or `skip` and count such passages.
        pool: search a small pooled collection instead of the whole one: the gold passages of all turns, and this
            number of BM25 results for each question and each `rewrite`. 0 means that `corpus` is already a pool.
        world_seed: seed of the tiny world.
    """

    format: Literal["records", "topiocqa", "qrecc", "mtrag", "tiny_world"] = "records"
    sets: dict[str, DataFiles] = field(default_factory=dict)
    holdout: Annotated[float, Ge(0), Lt(1)] = 0.0
    development_share: Annotated[float, Ge(0), Lt(1)] = 0.0
    evaluate_on: Literal["test", "development"] = "test"
    on_bad: Literal["stop", "skip"] = "stop"
    pool: NonNegative | None = None
    world_seed: int = 0

    def __post_init__(self) -> None:
        for name in self.sets:
            if not re.fullmatch(r"[\w-]+", name):
                raise InputError(f"`data.sets` has the name {name!r}; use letters, digits, `_` and `-`.")
        present = [field.name for field in fields(DataFiles) if getattr(self, field.name)]
        if self.sets and present:
            raise InputError(
                f"`data.{present[0]}` and `data.sets` are both set; move `{present[0]}` into a set of `data.sets`, or "
                f"remove one of the two (`--data.{present[0]} null`)."
            )
        if self.sets and self.format == "tiny_world":
            raise InputError(
                "`data.sets` needs files, but `data.format: tiny_world` generates its own. Remove one of the two."
            )
        sections = {"data": self} | {f"data.sets.{name}": files for name, files in self.sets.items()}
        for section, files in sections.items():
            if files.qrels and not files.test:
                raise InputError(
                    f"`{section}.qrels` is for the turns of `{section}.test`, which is not set; for turns that "
                    f"`data.holdout` takes from the `train` file, set `{section}.train_qrels`."
                )
        if self.evaluate_on == "development" and not self.development_share:
            raise InputError(
                "`data.evaluate_on: development` needs `data.development_share`, such as "
                "`--data.development_share 0.2`."
            )
