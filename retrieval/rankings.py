"""STAGE rankings: retrieve the documents of every candidate."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from core.errors import InputError
from core.records import TurnRecord
from core.settings import RetrievalSettings, RunSettings
from core.stage_runner import run_stage
from core.stages import Stage
from retrieval.collection import Collection, identities_of
from retrieval.engines import PerDatasetRetriever, ranking_config

BATCH_SIZE = 64  # turns


def make_rankings(
    run: RunSettings, name: str, candidates: Stage, options: RetrievalSettings, collections: Mapping[str, Collection]
) -> Stage:
    """Run the stage: retrieve the first `options.k` documents of each candidate in the collection of its data set.

    Raises:
        InputError: no candidate retrieved a document.
    """
    settings = ranking_config(options, collections)
    del settings["depth"]  # only for the evaluation
    inputs = {"candidates": candidates.identity, "corpus": identities_of(collections)}
    stage = Stage(run.path, name, settings, inputs, TurnRecord)

    def load_worker():
        retriever = PerDatasetRetriever(options, collections)

        def retrieve(batch: list[TurnRecord]) -> list[TurnRecord]:
            queries = [(record.dataset, candidate.query) for record in batch for candidate in record.candidates]
            hits = iter(retriever.search(queries, options.k))
            return [
                replace(record, candidates=tuple(replace(c, documents=tuple(next(hits))) for c in record.candidates))
                for record in batch
            ]

        return retrieve

    def summarize(records: Iterable[TurnRecord]) -> dict[str, Any]:
        """Totals: rankings, distinct document lists within a turn, and rankings without a document."""
        counts: Counter = Counter()
        for record in records:
            lists = [tuple(hit.doc for hit in candidate.documents) for candidate in record.candidates]
            empty = sum(not documents for documents in lists)
            counts.update(total=1, rankings=len(lists), distinct=len(set(lists)), empty=empty)
        if counts["rankings"] and counts["empty"] == counts["rankings"]:
            query = next(candidate.query for record in candidates for candidate in record.candidates)
            raise InputError(
                f"{name}: none of {counts['rankings']} rewrites retrieved a document, for example {query!r:.80}. Do "
                f"they share words with `data.corpus`? All are in {candidates.folder}; check `rewriter.model`, "
                f"`data.corpus` and `retrieval.analyzer`."
            )
        return dict(counts)

    return run_stage(stage, candidates, BATCH_SIZE, load_worker, summarize)
