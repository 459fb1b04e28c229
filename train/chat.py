"""Chat with a trained rewriter, and show what its queries retrieve from the collection of the run.

    python -m train.chat runs/quickstart
    python -m train.chat runs/smollm2 --dataset fiqa --documents 5

`python -m rewriter RUN` does the same without documents.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import rewriter
from core.cli import parse_flags, run_command
from core.errors import InputError, nearest
from core.progress import set_up_logging
from core.schema import Positive, Validated
from retrieval.engines import build_engine
from rewriter.chat import converse

LONGEST = 200  # characters to show of a document


@dataclass(kw_only=True)
class ChatFlags(Validated):
    """Flags of the command.

    Args:
        run: run folder.
        documents: number of documents to show for each query.
        dataset: name of the set in `data.sets` whose collection to search; by default the first.
        n: queries per question: 1 for the greedy rewrite, more for samples.
    """

    run: Path = field(metadata={"positional": True})
    documents: Positive = 3
    dataset: str | None = None
    n: Positive = 1


def main(argv: list[str] | None = None) -> None:
    flags = parse_flags(ChatFlags, __doc__, argv)
    set_up_logging()
    from train.run import load_run_folder

    run = load_run_folder(flags.run)
    dataset = next(iter(run.collections)) if flags.dataset is None else flags.dataset
    if dataset not in run.collections:
        raise InputError(f"`--dataset {dataset}`: {nearest(dataset, list(run.collections))}")
    collection = run.collections[dataset]
    engine = build_engine(run.settings.retrieval, collection)

    def documents_of(query: str) -> Iterator[str]:
        (hits,) = engine.search([query], flags.documents)
        texts = collection.contents([hit.doc for hit in hits])
        for number, (hit, text) in enumerate(zip(hits, texts, strict=True), 1):
            yield f"{number}. [{hit.doc}] {text[:LONGEST]}{' …' if len(text) > LONGEST else ''}"

    converse(rewriter.Rewriter.from_pretrained(run.path), flags.n, documents_of)


if __name__ == "__main__":
    run_command(main)
