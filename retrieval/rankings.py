"""STAGE rankings: retrieve the generator's documents for every candidate.

    python -m retrieval.rankings --config configs/quickstart.yaml

Reads `<run>/candidates` and the collections; writes `<run>/rankings`: `{"id", "rankings": [[[doc, score], ...] per
candidate]}`.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from core.artifacts import Stage, completed
from core.cli import read_settings, run_command
from core.errors import InputError
from core.runtime import process, set_up_logging
from core.settings import Settings
from core.stages import carry_out, shared_out
from retrieval.collection import collections_of, identities_of
from retrieval.retriever import RetrieverOfSets, recorded_of_sets

NAME = "rankings"
BATCH = 64


@dataclass(frozen=True)
class Queries:
    """The candidate queries of one turn, and the data set that they are searched in."""

    id: str
    dataset: str
    texts: tuple[str, ...]


def rankings_stage(settings: Settings) -> Stage:
    """The stage's folder with what decides its content."""
    candidates = completed(settings.run_dir / "candidates")
    collections = collections_of(settings)
    retrieval = recorded_of_sets(settings.retrieval, collections)
    del retrieval["depth"]  # of the evaluation alone
    inputs = {"candidates": candidates.identity(), "corpus": identities_of(collections)}
    return Stage(settings.run_dir / NAME, retrieval, inputs, process()[0])


def make_rankings(settings: Settings) -> Stage:
    """Bring the stage to its end.

    Raises:
        InputError: not one candidate has a document.
    """
    candidates = completed(settings.run_dir / "candidates")

    def plan() -> list[list[Queries]]:
        found = (
            Queries(record["id"], record.get("dataset", ""), tuple(c["query"] for c in record["candidates"]))
            for record in candidates.records()
        )
        return shared_out(sorted(found, key=lambda queries: queries.id), BATCH)

    def worker():
        retriever = RetrieverOfSets(settings.retrieval, collections_of(settings))

        def make(batch: list[Queries]) -> list[dict[str, Any]]:
            asked = [(queries.dataset, text) for queries in batch for text in queries.texts]
            hits = iter(retriever.search(asked, settings.retrieval.k))
            return [
                {"id": queries.id, "rankings": [[[hit.doc, hit.score] for hit in next(hits)] for _ in queries.texts]}
                for queries in batch
            ]

        return make

    def summarise_found(records: Iterable[dict[str, Any]]) -> dict[str, Any]:
        counts = summarise(records)
        if counts.get("rankings") and counts["empty"] == counts["rankings"]:
            example = next(c["query"] for r in candidates.records() for c in r["candidates"])
            raise InputError(
                f"rankings: not one of {counts['rankings']} rewrites has a document; one of them is {example!r:.80}. "
                f"Do they share words with `data.corpus`? All are in {candidates.folder}; look at `rewriter.model`, "
                f"`data.corpus` and `retrieval.analyzer`."
            )
        return counts

    return carry_out(rankings_stage(settings), plan, worker, summarise_found)


def summarise(records: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Totals: rankings, distinct document lists within a turn, and rankings without a document."""
    counts: Counter = Counter()
    for record in records:
        lists = [tuple(doc for doc, _ in ranking) for ranking in record["rankings"]]
        counts.update(total=1, rankings=len(lists), distinct=len(set(lists)), empty=sum(not found for found in lists))
    return dict(counts)


def main() -> None:
    settings = read_settings(__doc__, alone=NAME)
    set_up_logging()
    make_rankings(settings)


if __name__ == "__main__":
    run_command(main)
