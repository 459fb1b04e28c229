"""BM25 with rank-bm25: exact scores for small collections."""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from rank_bm25 import BM25Okapi

from core.errors import InputError
from core.records import Hit, Passage
from retrieval.analyzer import Analyzer

CACHE_BYTES = 256 << 20


class LuceneOkapi(BM25Okapi):
    """rank-bm25's Okapi with Lucene's idf, log(1 + (N - n + 0.5) / (n + 0.5)): a frequent term never scores below
    zero."""

    def _calc_idf(self, nd: dict[str, int]) -> None:
        for word, documents in nd.items():
            self.idf[word] = float(np.log(1 + (self.corpus_size - documents + 0.5) / (documents + 0.5)))


class RankBM25:
    """A collection ranked by BM25.

    A document's score is the sum over query terms, so the scores of one term over all documents are computed by rank-
    bm25 once and kept (the most recently used ones, within 256 MB).

    Args:
        passages: the collection.
        analyzer: text to terms.
        k1: term-frequency saturation, at least 0.
        b: length normalisation, 0 to 1.

    Raises:
        InputError: no passage has a term.
    """

    def __init__(self, passages: Sequence[Passage], analyzer: Analyzer, k1: float = 0.9, b: float = 0.4):
        self.ids = [passage.id for passage in passages]
        self.analyzer = analyzer
        terms = [analyzer(passage.content) for passage in passages]
        if not any(terms):
            raise InputError("the collection has no words in it; is `retrieval.analyzer` right for its language?")
        self.model = LuceneOkapi(terms, k1=k1, b=b)
        self.known: OrderedDict[str, np.ndarray] = OrderedDict()
        self.most_known = max(1, CACHE_BYTES // (8 * len(self.ids)))

    def _term_scores(self, term: str) -> np.ndarray:
        if term not in self.known:
            self.known[term] = self.model.get_scores([term])
            if len(self.known) > self.most_known:
                self.known.popitem(last=False)
        self.known.move_to_end(term)
        return self.known[term]

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Up to `k` documents per query that share a term with it; equal scores in collection order."""
        return [self._search_one(query, k) for query in queries]

    def _search_one(self, query: str, k: int) -> list[Hit]:
        scores = np.zeros(len(self.ids))
        for term in self.analyzer(query):
            if term in self.model.idf:
                scores += self._term_scores(term)
        order = np.argsort(-scores, kind="stable")[:k]
        return [Hit(self.ids[i], float(scores[i])) for i in order if scores[i] > 0]
