"""The interface that every retrieval engine implements."""

from collections.abc import Sequence
from typing import Protocol

from core.records import Hit


class Retriever(Protocol):
    """Ranks the documents of a collection for queries."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Rank documents.

        Args:
            queries: search queries; an empty query has no hits.
            k: maximum number of hits per query, at least 1.

        Returns:
            The hits of each query in descending order of score; an empty list if nothing matches.
        """
        ...
