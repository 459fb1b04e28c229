"""Convert a published data set to `turns.jsonl`, and check that it is complete.

    python -m rewriter.datasets --format topiocqa --split test --turns topiocqa_dev.json --qrels gold_dev.json \\
      --output turns.jsonl --full

For MTRAG, the command can also convert the collection of a domain (docs/mtrag.md):

    python -m rewriter.datasets --format mtrag --split test --turns reference.jsonl --qrels clapnq/qrels/dev.tsv \\
      --output turns.jsonl --passages clapnq.jsonl.zip --corpus corpus.jsonl
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from core.cli import parse_flags, run_command
from core.errors import InputError
from core.json_records import write_records
from core.progress import log, set_up_logging
from core.records import Turn
from core.schema import Validated
from rewriter.datasets import READERS
from rewriter.datasets.mtrag import read_passages

# Number of turns of a whole split; for QReCC, turns with gold passages; for MTRAG, tasks of all four domains.
FULL = {
    ("topiocqa", "train"): 45_450,
    ("topiocqa", "test"): 2_514,
    ("qrecc", "train"): 29_596,
    ("qrecc", "test"): 8_209,
    ("mtrag", "test"): 842,
}


def check_counts(name: str, split: str, turns: Sequence[Turn]) -> None:
    """Raise InputError if a split does not have its published number of turns, or is not published."""
    if (name, split) not in FULL:
        raise InputError(f"`--full`: {name} has no `{split}` split; known: {', '.join(map(' '.join, FULL))}.")
    expected, number, unit = FULL[name, split], len(turns), "turns"
    if name == "qrecc":
        number, unit = sum(bool(turn.relevant) for turn in turns), "turns with gold passages"
    if number != expected:
        raise InputError(
            f"`--full`: the {split} split of {name} has {expected} {unit}, but this file has {number}; "
            "is the file complete, of this split, and (mtrag) read without `--qrels`?"
        )


def write_corpus(path: Path, corpus: Path, turns: Sequence[Turn]) -> None:
    """Write the passages of an MTRAG domain as a collection; raises InputError if a gold passage is missing."""
    passages = list(read_passages(path))
    gold = {doc for turn in turns for doc in turn.relevant}
    if missing := sorted(gold - {passage.id for passage in passages}):
        raise InputError(
            f"{path}: {len(missing)} of {len(gold)} gold passages are missing, such as `{missing[0]}`; use the file "
            "of the same domain in `corpora/passage_level`, from the same commit of the repository."
        )
    write_records(corpus, passages)
    log.info("%d passages -> %s", len(passages), corpus)


@dataclass(kw_only=True)
class ConvertFlags(Validated):
    """Flags of the command.

    Args:
        format: the data set.
        split: split of the data set; `test` is TopiOCQA's dev.
        turns: published file of turns.
        qrels: published file of gold passages, if they are in a separate file.
        output: turns.jsonl to write.
        passages: mtrag: published file of passages.
        corpus: mtrag: corpus.jsonl to write, from `--passages`.
        full: fail unless the split has its published number of turns.
    """

    format: Literal[*READERS]
    split: Literal["train", "test"]
    turns: Path
    qrels: Path | None = None
    output: Path
    passages: Path | None = None
    corpus: Path | None = None
    full: bool = False

    def __post_init__(self) -> None:
        if bool(self.passages) != bool(self.corpus):
            raise InputError("`--passages` and `--corpus` need each other; set both or neither.")
        if self.passages and self.format != "mtrag":
            raise InputError("`--passages` is for `--format mtrag`; docs/data.md describes the other collections.")


def main(argv: list[str] | None = None) -> None:
    flags = parse_flags(ConvertFlags, __doc__, argv)
    set_up_logging()
    turns = READERS[flags.format](flags.turns, flags.qrels)
    if flags.full:
        check_counts(flags.format, flags.split, turns)
    if flags.passages:
        write_corpus(flags.passages, flags.corpus, turns)
    write_records(flags.output, turns)
    labelled, conversations = sum(bool(turn.relevant) for turn in turns), len({turn.group for turn in turns})
    log.info(
        "%d turns of %d conversations, %d with gold passages -> %s",
        len(turns), conversations, labelled, flags.output,
    )  # fmt: skip


if __name__ == "__main__":
    run_command(main)
