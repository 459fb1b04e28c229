"""BM25 with bm25s: an index on disk, made once, for collections of any size that fits one machine."""

import logging
import os
import shutil
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from filelock import FileLock

from core.errors import InputError
from core.records import Hit
from core.runtime import Progress, log
from core.settings import RetrievalSettings
from retrieval.analyzer import VERSION, Analyzer, analyzer_of
from retrieval.bm25 import no_words
from retrieval.collection import Collection

# variant -> bm25s' method and idf, and the delta of the paper; scores are those of `retrieval.bm25`
VARIANTS = {"lucene": ("atire", "lucene", 0.0), "plus": ("bm25+", "bm25+", 1.0), "l": ("bm25l", "bm25l", 0.5)}
MOST_THREADS = 8
THREADED = 200_000  # passages below which a query is too little work to hand it to a thread
SHARE = 32  # queries that a thread takes at once
PARTS = 1000  # of the scores, whose maxima tell which documents can be among the best


class SavedBM25:
    """A collection ranked by a bm25s index, which is memory-mapped and shared between processes.

    Args:
        collection: the collection.
        folder: the index, as `build_index` has made it.
        analyzer: text to terms, as at indexing.
        threads: queries searched at once in a large collection; each needs 4 bytes a document and a few times as much
            for matching ones.
    """

    def __init__(self, collection: Collection, folder: Path, analyzer: Analyzer, threads: int | None = None):
        self.collection, self.analyzer = collection, analyzer
        self.threads = threads or min(MOST_THREADS, os.cpu_count() or 1)
        self._model = quiet_bm25s().BM25.load(folder, mmap=True, show_progress=False)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Up to `k` documents per query that share a term with it; equal scores in collection order."""
        terms = [self._model.get_tokens_ids(self.analyzer(query)) for query in queries]  # the analyser has one thread
        shares = [terms[start : start + SHARE] for start in range(0, len(terms), SHARE)]
        with ThreadPoolExecutor(self.threads if len(self.collection) >= THREADED else 1) as pool:
            found = pool.map(lambda share: [self._best(one, k) for one in share], shares)
            best = [one for share in found for one in share]
        ids = iter(self.collection.ids([row for rows, _ in best for row in rows]))
        return [[Hit(next(ids), score) for score in scores] for _, scores in best]

    def _best(self, terms: list[int], k: int) -> tuple[list[int], list[float]]:
        """Rows and scores of the `k` best documents."""
        if not terms:
            return [], []
        scores = self._model.get_scores_from_ids(terms)
        floor = reached_by(scores, k)
        rows = np.flatnonzero(scores >= floor) if floor > 0 else np.flatnonzero(scores)  # a match adds more than 0
        best = rows[np.argsort(-scores[rows], kind="stable")][:k]
        return best.tolist(), scores[best].tolist()


def reached_by(scores: np.ndarray, k: int) -> float:
    """A score that at least `k` documents reach, near the k-th best: the k-th best of the maxima of equal parts.

    Args:
        scores: [documents].
        k: at least 1.

    Returns:
        The score; 0 where there are too few documents for parts.
    """
    parts = max(PARTS, 4 * k)
    size = len(scores) // parts
    if size == 0:
        return 0.0
    return float(np.partition(scores[: parts * size].reshape(parts, size).max(axis=1), -k)[-k])


def saved_bm25(settings: RetrievalSettings, collection: Collection) -> SavedBM25:
    """The retriever over the collection's index, which is made when it is not there yet.

    The index lives in the collection's folder, one for every analyser, variant, `k1` and `b`; one process makes it and
    the others wait.

    Raises:
        InputError: the variant is not one of bm25s', or no passage has a term.
    """
    if settings.bm25_variant not in VARIANTS:
        raise InputError(
            f"`retrieval.bm25_variant: {settings.bm25_variant}` is not for bm25s, which has {', '.join(VARIANTS)}; "
            f"use it with `retrieval.engine: rank_bm25`."
        )
    analyzer = analyzer_of(settings.analyzer)
    name = f"{settings.analyzer}-{VERSION}-{settings.bm25_variant}-k1-{settings.k1}-b-{settings.b}"
    folder = collection.folder / "bm25s" / name
    folder.parent.mkdir(exist_ok=True)
    with FileLock(folder.parent / f".{name}.lock"):
        if folder.exists():
            log.info("bm25s: the index is there (%s)", folder)
        else:
            partial = folder.parent / f".{name}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            build_index(collection, analyzer, settings, partial)
            partial.replace(folder)
            log.info("bm25s: indexed %d passages -> %s", len(collection), folder)
    return SavedBM25(collection, folder, analyzer)


class TermNumbers:
    """Documents as lists of term numbers, in one flat array of 4 bytes a term; what bm25s reads more than once."""

    def __init__(self) -> None:
        self.flat, self.ends = array("i"), array("q", [0])

    def append(self, numbers: list[int]) -> None:
        self.flat.extend(numbers)
        self.ends.append(len(self.flat))

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __iter__(self) -> Iterator[list[int]]:
        return (self.flat[start:end].tolist() for start, end in pairwise(self.ends))


def build_index(collection: Collection, analyzer: Analyzer, settings: RetrievalSettings, folder: Path) -> None:
    """Index a collection, its passages read as a stream, and save the index.

    Raises:
        InputError: no passage has a term.
    """
    documents, known = TermNumbers(), {}
    with Progress("bm25s", len(collection), "passages") as progress:
        for passage in collection.passages():
            documents.append([known.setdefault(term, len(known)) for term in analyzer(passage.content)])
            progress.advance()
    if not known:
        raise no_words()
    method, idf, delta = VARIANTS[settings.bm25_variant]
    model = quiet_bm25s().BM25(
        k1=settings.k1, b=settings.b, delta=delta, method=method, idf_method=idf, csc_backend="scipy"
    )
    model.index(SimpleNamespace(ids=documents, vocab=known), create_empty_token=False, show_progress=False)
    if model.nonoccurrence_array is not None:
        # bm25s gives documents without a term the score of frequency 0; here they get nothing from it.
        model.scores["data"] += np.repeat(model.nonoccurrence_array, np.diff(model.scores["indptr"]))
        model.nonoccurrence_array, model.method = None, "atire"
    model.save(folder, show_progress=False)


def quiet_bm25s():
    """bm25s without the messages that it logs at its own level."""
    import bm25s

    logging.getLogger("bm25s").setLevel(logging.WARNING)
    return bm25s
