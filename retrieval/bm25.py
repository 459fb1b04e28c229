"""BM25 with rank-bm25: exact scores in memory, for small collections."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np
from rank_bm25 import BM25, BM25L, BM25Okapi, BM25Plus

from core.errors import InputError
from core.records import Hit, Passage
from retrieval.analyzer import Analyzer

NO_TERMS = "the collection contains no words; is `retrieval.analyzer` right for its language?"


class PublishedBM25L(BM25L):
    """BM25L as published; the class of rank-bm25 multiplies by the term frequency once too often."""

    def get_batch_scores(self, query: list[str], doc_ids: Sequence[int]) -> list[float]:
        """Scores of documents that all contain the one term of the query.

        Source: Lv and Zhai, "When Documents Are Very Long, BM25 Fails!", SIGIR 2011.
        """
        frequencies = [self.doc_freqs[row][query[0]] for row in doc_ids]
        scores = super().get_batch_scores(query, doc_ids)
        return [score / frequency for score, frequency in zip(scores, frequencies, strict=True)]


VARIANTS: dict[str, type[BM25]] = {"lucene": BM25Okapi, "okapi": BM25Okapi, "plus": BM25Plus, "l": PublishedBM25L}


class RankBM25:
    """Ranks a collection with BM25.

    A document's score is the sum over the query terms that it contains. rank-bm25 computes the scores of a term for
    the documents that contain it when the term is first searched.

    Args:
        passages: the collection.
        analyzer: function from text to terms.
        k1: term-frequency saturation, at least 0.
        b: length normalization, 0 to 1.
        variant: `lucene`, `okapi`, `plus` or `l` (`retrieval.bm25_variant`).

    Raises:
        InputError: no passage has a term.
    """

    def __init__(
        self, passages: Iterable[Passage], analyzer: Analyzer, k1: float = 0.9, b: float = 0.4, variant: str = "lucene"
    ):
        self.analyzer = analyzer
        self.ids: list[str] = []
        documents = []
        for passage in passages:
            self.ids.append(passage.id)
            documents.append(analyzer(passage.content))
        self._postings: dict[str, list[int]] = defaultdict(list)  # term -> rows of the documents that contain it
        self._scores_of_term = cache(self._score_term)
        if not any(documents):
            raise InputError(NO_TERMS)
        self._model = VARIANTS[variant](documents, k1=k1, b=b)
        self._model.doc_len = np.array(self._model.doc_len)
        for row, document in enumerate(documents):
            for term in set(document):
                self._postings[term].append(row)
        if variant == "lucene":  # Lucene's idf, which is never negative
            self._model.idf = {
                term: float(np.log(1 + (len(documents) - len(rows) + 0.5) / (len(rows) + 0.5)))
                for term, rows in self._postings.items()
            }

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Up to `k` documents per query that share a term with it; ties stay in collection order."""
        return [self._search_one(query, k) for query in queries]

    def _search_one(self, query: str, k: int) -> list[Hit]:
        scores, matched = np.zeros(len(self.ids)), np.zeros(len(self.ids), dtype=bool)
        for term in self.analyzer(query):
            if term in self._postings:
                rows, values = self._scores_of_term(term)
                scores[rows] += values
                matched[rows] = True
        rows = np.flatnonzero(matched)
        top = rows[np.argsort(-scores[rows], kind="stable")][:k]
        return [Hit(self.ids[row], float(scores[row])) for row in top]

    def _score_term(self, term: str) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the documents that contain a term, and the term's contribution to the score of each."""
        rows = self._postings[term]
        return np.array(rows), np.array(self._model.get_batch_scores([term], rows))
