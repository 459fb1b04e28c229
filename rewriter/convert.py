"""Write a published data set as `turns.jsonl`, and check that it is all there.

    python -m rewriter.convert --format topiocqa --split test --turns topiocqa_dev.json --qrels gold_dev.json \\
      --output turns.jsonl --full

For MTRAG, it writes the collection of a domain too (docs/mtrag.md):

    python -m rewriter.convert --format mtrag --split test --turns reference.jsonl --qrels clapnq/qrels/dev.tsv \\
      --output turns.jsonl --passages clapnq.jsonl.zip --corpus corpus.jsonl
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from core.artifacts import write_atomic
from core.errors import InputError
from core.records import Turn, to_json_dict
from core.runtime import log, run_command, set_up_logging
from rewriter.conversations import READERS
from rewriter.mtrag import read_passages

# Turns of the whole set; of QReCC, those with gold passages; of MTRAG, the tasks of all four domains.
FULL = {
    ("topiocqa", "train"): 45_450,
    ("topiocqa", "test"): 2_514,
    ("qrecc", "train"): 29_596,
    ("qrecc", "test"): 8_209,
    ("mtrag", "test"): 842,
}


def check_counts(name: str, split: str, turns: Sequence[Turn]) -> None:
    """Make sure that a split is whole.

    Args:
        name: `topiocqa`, `qrecc` or `mtrag`.
        split: `train` or `test` (TopiOCQA's dev).
        turns: what was read.

    Raises:
        InputError: the number of turns is another than the published one, or none is published.
    """
    if (name, split) not in FULL:
        raise InputError(f"`--full`: {name} has no `{split}` split; known: {', '.join(map(' '.join, FULL))}.")
    expected, labelled = FULL[name, split], name == "qrecc"
    number = sum(bool(turn.relevant) for turn in turns) if labelled else len(turns)
    if number != expected:
        what = "turns with gold passages" if labelled else "turns"
        raise InputError(
            f"`--full`: the {split} split of {name} has {expected} {what}, this file {number}; "
            "is it whole, of this split, and (mtrag) read without `--qrels`?"
        )


def write_corpus(passages: Path, corpus: Path, turns: Sequence[Turn]) -> None:
    """Write the passages of an MTRAG domain as a collection.

    Args:
        passages: as published.
        corpus: the file to write.
        turns: those of the domain.

    Raises:
        InputError: the passages cannot be read, or a gold passage of the turns is not among them.
    """
    ids = {passage.id for passage in read_passages(passages)}
    gold = {doc for turn in turns for doc in turn.relevant}
    if missing := sorted(gold - ids):
        raise InputError(
            f"{passages}: {len(missing)} of {len(gold)} gold passages are missing, such as `{missing[0]}`; take the "
            "file of `corpora/passage_level` and of the same domain, from the same state of the repository."
        )
    lines = (json.dumps(to_json_dict(passage), ensure_ascii=False) + "\n" for passage in read_passages(passages))
    write_atomic(corpus, lines)
    log.info("%d passages -> %s", len(ids), corpus)


def existing_file(flag: str, name: str | None) -> Path | None:
    """The path that a flag gives; raises InputError where there is no such file."""
    if name and not Path(name).is_file():
        raise InputError(f"`--{flag}`: no file at {name}.")
    return Path(name) if name else None


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="rewriter.convert", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--format", required=True, choices=READERS, help="the data set")
    parser.add_argument("--split", required=True, choices=("train", "test"), help="test is TopiOCQA's dev")
    parser.add_argument("--turns", required=True, help="its file of turns, as published")
    parser.add_argument("--qrels", help="its file of gold passages, where that is another")
    parser.add_argument("--output", type=Path, required=True, help="turns.jsonl to write")
    parser.add_argument("--passages", help="mtrag: its file of passages, as published")
    parser.add_argument("--corpus", type=Path, help="mtrag: corpus.jsonl to write, from --passages")
    parser.add_argument("--full", action="store_true", help="fail unless the split has its published number of turns")
    arguments = parser.parse_args()
    if bool(arguments.passages) != bool(arguments.corpus):
        parser.error("--passages and --corpus go together")
    if arguments.passages and arguments.format != "mtrag":
        parser.error("--passages is for --format mtrag; the other sets' collections: docs/data.md")
    set_up_logging()
    qrels = existing_file("qrels", arguments.qrels)
    turns = READERS[arguments.format](existing_file("turns", arguments.turns), qrels)
    if arguments.full:
        check_counts(arguments.format, arguments.split, turns)
    if arguments.passages:
        write_corpus(existing_file("passages", arguments.passages), arguments.corpus, turns)
    records = ({"id": turn.id, "history": []} | to_json_dict(turn) for turn in turns)
    write_atomic(arguments.output, (json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    labelled, conversations = sum(bool(turn.relevant) for turn in turns), len({turn.group for turn in turns})
    log.info(
        "%d turns of %d conversations, %d with gold passages -> %s",
        len(turns), conversations, labelled, arguments.output,
    )  # fmt: skip


if __name__ == "__main__":
    run_command(main)
