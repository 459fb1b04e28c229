"""Reciprocal rank fusion of retrievers."""

from collections import defaultdict
from collections.abc import Sequence

from core.records import Hit
from retrieval.retriever import Retriever

POOL = 100  # documents taken from each retriever, at least


class Fusion:
    """Several retrievers as one: a document's score is the sum of 1 / (rrf_k + rank) over those that found it.

    Args:
        retrievers: each gives `max(k, 100)` documents per query.
        rrf_k: at least 0; the larger, the less the first ranks stand out (60 in the paper).

    Source: Cormack, Clarke and Buettcher, "Reciprocal Rank Fusion Outperforms Condorcet and Individual Rank Learning
    Methods", SIGIR 2009.
    """

    def __init__(self, retrievers: Sequence[Retriever], rrf_k: int = 60):
        self.retrievers, self.rrf_k = retrievers, rrf_k

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Up to `k` documents per query; of equal ones first those that the first retriever found, in its order."""
        found = [retriever.search(queries, max(k, POOL)) for retriever in self.retrievers]
        return [self._fused(rankings)[:k] for rankings in zip(*found, strict=True)]

    def _fused(self, rankings: Sequence[list[Hit]]) -> list[Hit]:
        scores: dict[str, float] = defaultdict(float)
        for hits in rankings:
            for rank, hit in enumerate(hits, 1):
                scores[hit.doc] += 1 / (self.rrf_k + rank)
        return [Hit(doc, score) for doc, score in sorted(scores.items(), key=lambda item: -item[1])]
