"""BM25 with bm25s: an index on disk that is built once, for collections that fit on one machine."""

import logging
import os
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import bm25s
import numpy as np
from bm25s.tokenization import Tokenized

from core.cache import build_once
from core.errors import InputError
from core.progress import Progress, log
from core.records import Hit
from core.settings import RetrievalSettings
from retrieval.analyzer import ANALYZERS, VERSION, Analyzer
from retrieval.bm25 import NO_TERMS
from retrieval.collection import Collection

logging.getLogger("bm25s").setLevel(logging.WARNING)  # the library sets DEBUG

# `retrieval.bm25_variant` -> method, idf and delta of bm25s; the scores equal those of `retrieval.bm25`
VARIANTS = {"lucene": ("atire", "lucene", 0.0), "plus": ("bm25+", "bm25+", 1.0), "l": ("bm25l", "bm25l", 0.5)}
MAX_THREADS = 8
MIN_THREADED = 200_000  # passages; queries of smaller collections are too little work for a thread
CHUNKS = 1000  # number of chunks of a query's scores


class BM25sIndex:
    """Ranks a collection with a bm25s index, which is memory-mapped and shared between processes.

    The index is built if it is not in the cache: one per analyzer, variant, `k1` and `b`.

    Args:
        settings: the settings of BM25.
        collection: the passages.
        threads: number of queries to search in parallel in a large collection; each takes 4 bytes of memory per
            document and a few times as much per matching document.

    Raises:
        InputError: no passage has a term.
    """

    def __init__(self, settings: RetrievalSettings, collection: Collection, threads: int | None = None):
        self.collection, self.analyzer = collection, ANALYZERS[settings.analyzer]()
        threads = threads or min(MAX_THREADS, os.cpu_count() or 1)
        self.threads = threads if len(collection) >= MIN_THREADED else 1
        name = f"{settings.analyzer}-{VERSION}-{settings.bm25_variant}-k1-{settings.k1}-b-{settings.b}"
        folder = collection.folder / "bm25s" / name
        if build_once(folder, lambda partial: write_index(collection, self.analyzer, settings, partial)):
            log.info("bm25s: indexed %d passages -> %s", len(collection), folder)
        else:
            log.info("bm25s: the index exists (%s)", folder)
        self._model = bm25s.BM25.load(folder, mmap=True, show_progress=False)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Up to `k` documents per query that share a term with it; ties stay in collection order."""
        terms = [self._model.get_tokens_ids(self.analyzer(query)) for query in queries]  # not thread-safe
        with ThreadPoolExecutor(self.threads) as pool:
            top = list(pool.map(lambda query_terms: self._top(query_terms, k), terms))
        ids = iter(self.collection.ids([row for rows, _ in top for row in rows]))
        return [[Hit(next(ids), score) for score in scores] for _, scores in top]

    def _top(self, terms: list[int], k: int) -> tuple[list[int], list[float]]:
        """Rows and scores of the `k` best documents."""
        if not terms:
            return [], []
        scores = self._model.get_scores_from_ids(terms)
        # At least k documents reach the k-th largest maximum of chunks, which is quick to find; few are left to sort.
        size = max(1, len(scores) // max(CHUNKS, 4 * k))
        maxima = np.maximum.reduceat(scores, np.arange(0, len(scores), size))
        floor = np.partition(maxima, -k)[-k] if k <= len(maxima) else 0
        rows = np.flatnonzero(scores >= floor) if floor > 0 else np.flatnonzero(scores)  # a match scores above 0
        top = rows[np.argsort(-scores[rows], kind="stable")][:k]
        return top.tolist(), scores[top].tolist()


def write_index(collection: Collection, analyzer: Analyzer, settings: RetrievalSettings, folder: Path) -> None:
    """Index the passages of a collection and save the index."""
    documents, vocabulary = [], {}
    with Progress("bm25s", len(collection), "passages") as progress:
        for passage in collection.passages():
            terms = analyzer(passage.content)
            documents.append(array("i", [vocabulary.setdefault(term, len(vocabulary)) for term in terms]))
            progress.advance()
    if not vocabulary:
        raise InputError(NO_TERMS)
    method, idf, delta = VARIANTS[settings.bm25_variant]
    model = bm25s.BM25(k1=settings.k1, b=settings.b, delta=delta, method=method, idf_method=idf, csc_backend="scipy")
    model.index(Tokenized(documents, vocabulary), create_empty_token=False, show_progress=False)
    if model.nonoccurrence_array is not None:
        # bm25s scores documents without a term as if its frequency were 0; here, the term adds nothing to their score.
        model.scores["data"] += np.repeat(model.nonoccurrence_array, np.diff(model.scores["indptr"]))
        model.nonoccurrence_array, model.method = None, "atire"
    model.save(folder, show_progress=False)
