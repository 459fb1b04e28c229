"""What a retriever is, and the one that the settings name."""

from collections.abc import Sequence
from typing import Protocol

from core.records import Hit, Passage
from core.settings import RetrievalSettings


class Retriever(Protocol):
    """Anything that ranks documents for queries."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Up to `k` hits per query, best first, scores never rising; an empty list where nothing matches."""
        ...


def retriever_of(settings: RetrievalSettings, passages: Sequence[Passage]) -> Retriever:
    """The retriever that `retrieval.engine` names, over a collection."""
    from retrieval.analyzer import analyzer_of
    from retrieval.bm25 import RankBM25

    return RankBM25(passages, analyzer_of(settings.analyzer), settings.k1, settings.b)
