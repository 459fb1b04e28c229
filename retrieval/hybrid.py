"""Hybrid retrieval: merge the rankings of several engines."""

from collections import defaultdict
from collections.abc import Sequence

from core.records import Hit
from retrieval.retriever import Retriever

MIN_DEPTH = 100  # minimum number of documents requested from each engine


class ReciprocalRankFusion:
    """Scores a document with the sum of 1 / (rrf_k + rank) over the engines that retrieved it.

    Args:
        retrievers: the engines to merge; each retrieves `max(k, 100)` documents per query.
        rrf_k: at least 0; larger values give less weight to the first ranks (60 in the paper).

    Source: Cormack, Clarke and Buettcher, "Reciprocal Rank Fusion Outperforms Condorcet and Individual Rank Learning
    Methods", SIGIR 2009.
    """

    def __init__(self, retrievers: Sequence[Retriever], rrf_k: int = 60):
        self.retrievers, self.rrf_k = retrievers, rrf_k

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Up to `k` documents per query; ties keep the order of the first engine, then of the second."""
        rankings = [retriever.search(queries, max(k, MIN_DEPTH)) for retriever in self.retrievers]
        return [self._fuse(per_engine)[:k] for per_engine in zip(*rankings, strict=True)]

    def _fuse(self, rankings: Sequence[list[Hit]]) -> list[Hit]:
        scores: dict[str, float] = defaultdict(float)
        for hits in rankings:
            for rank, hit in enumerate(hits, 1):
                scores[hit.doc] += 1 / (self.rrf_k + rank)
        return [Hit(doc, score) for doc, score in sorted(scores.items(), key=lambda item: -item[1])]
