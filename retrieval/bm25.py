"""BM25 with rank-bm25: exact scores for small collections."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from rank_bm25 import BM25, BM25L, BM25Okapi, BM25Plus

from core.errors import InputError
from core.records import Hit, Passage
from retrieval.analyzer import Analyzer


class LuceneOkapi(BM25Okapi):
    """rank-bm25's Okapi with Lucene's idf, log(1 + (N - n + 0.5) / (n + 0.5)): a frequent term never scores below
    zero."""

    def _calc_idf(self, nd: dict[str, int]) -> None:
        for word, documents in nd.items():
            self.idf[word] = float(np.log(1 + (self.corpus_size - documents + 0.5) / (documents + 0.5)))


class PublishedBM25L(BM25L):
    """rank-bm25's BM25L without the term frequency that it multiplies the published formula with once too often."""

    def get_batch_scores(self, query: list[str], doc_ids: Sequence[int]) -> list[float]:
        """Scores of documents for a query of one term that they all have.

        Source: Lv and Zhai, "When Documents Are Very Long, BM25 Fails!", SIGIR 2011.
        """
        frequencies = [self.doc_freqs[row][query[0]] for row in doc_ids]
        scores = super().get_batch_scores(query, doc_ids)
        return [score / frequency for score, frequency in zip(scores, frequencies, strict=True)]


VARIANTS: dict[str, type[BM25]] = {"lucene": LuceneOkapi, "okapi": BM25Okapi, "plus": BM25Plus, "l": PublishedBM25L}


def no_words() -> InputError:
    return InputError("the collection has no words in it; is `retrieval.analyzer` right for its language?")


class RankBM25:
    """A collection ranked by BM25.

    A document's score is the sum over the query's terms that it has. The scores of a term are computed by rank-bm25,
    for the documents that have it, when the term is first asked for.

    Args:
        passages: the collection; of an empty one every search finds nothing.
        analyzer: text to terms.
        k1: term-frequency saturation, at least 0.
        b: length normalisation, 0 to 1.
        variant: `lucene`, `okapi`, `plus` or `l` (`retrieval.bm25_variant`).

    Raises:
        InputError: no passage has a term.
    """

    def __init__(
        self,
        passages: Iterable[Passage],
        analyzer: Analyzer,
        k1: float = 0.9,
        b: float = 0.4,
        variant: str = "lucene",
    ):
        self.ids: list[str] = []
        terms = []
        for passage in passages:
            self.ids.append(passage.id)
            terms.append(analyzer(passage.content))
        if terms and not any(terms):
            raise no_words()
        self.analyzer = analyzer
        self._rows: dict[str, list[int]] = defaultdict(list)  # term -> the documents that have it
        self._known: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        if terms:
            self._model = VARIANTS[variant](terms, k1=k1, b=b)
            self._model.doc_len = np.array(self._model.doc_len)
            for row, frequencies in enumerate(self._model.doc_freqs):
                for term in frequencies:
                    self._rows[term].append(row)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Up to `k` documents per query that share a term with it; equal scores in collection order."""
        return [self._search_one(query, k) for query in queries]

    def _search_one(self, query: str, k: int) -> list[Hit]:
        terms = [term for term in self.analyzer(query) if term in self._rows]
        if not terms:
            return []
        scores, matched = np.zeros(len(self.ids)), np.zeros(len(self.ids), dtype=bool)
        for term in terms:
            rows, values = self._scores_of(term)
            scores[rows] += values
            matched[rows] = True
        rows = np.flatnonzero(matched)
        best = rows[np.argsort(-scores[rows], kind="stable")][:k]
        return [Hit(self.ids[row], float(scores[row])) for row in best]

    def _scores_of(self, term: str) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the documents that have a term, and what it adds to the score of each."""
        if term not in self._known:
            rows = self._rows[term]
            self._known[term] = np.array(rows), np.array(self._model.get_batch_scores([term], rows))
        return self._known[term]
