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
        sets: several data sets, in place of the five files above: name -> its `train`, `test`, `qrels`, `train_qrels`
            and `corpus`. Each turn is searched in the collection of its set.
        holdout: where a set has no `test` file, keep this share of the conversations of its `train` file out of
            training, to evaluate on: the last ones. The number is rounded up; less than a hundredth of a conversation
            counts for nothing, so that 0.3333 is a third.
        development_share: keep this share of the other conversations, the last of them, out of training too, to choose
            settings with. The number is rounded up in the same way.
        evaluate_on: evaluate on the `test` turns or on the `development` turns.
        on_bad: a passage that cannot be used stops the run (`stop`), or is left out and counted (`skip`).
        pool: use a small pooled collection in place of the whole: the gold passages of all turns, and this many
            passages that BM25 finds for each question and each `rewrite`. 0 says that `corpus` is a pool already.
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
                f"leave one of the two out (`--data.{present[0]} null`)."
            )
        if self.sets and self.format == "tiny_world":
            raise InputError(
                "`data.sets` needs files; `data.format: tiny_world` makes its own. Leave one of the two out."
            )
        sections = {"data": self} | {f"data.sets.{name}": files for name, files in self.sets.items()}
        for section, files in sections.items():
            if files.qrels and not files.test:
                raise InputError(
                    f"`{section}.qrels` belongs to `{section}.test`, which is not set; gold passages of turns that "
                    f"`data.holdout` keeps from the `train` file are in `{section}.train_qrels`."
                )
        if self.evaluate_on == "development" and not self.development_share:
            raise InputError(
                "`data.evaluate_on: development` needs `data.development_share`, such as "
                "`--data.development_share 0.2`."
            )
