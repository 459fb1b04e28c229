"""Retrieval engines by name, and their settings as stages record them.

A new engine needs a `Retriever` in a new file, a branch in `build_engine`, an entry in `RANKING_SETTINGS`, and in
`core.retrieval_settings` its name in `SingleEngine` and its required settings in `check_engines`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from core.cache import model_identity
from core.data_sources import by_data_set
from core.errors import InputError
from core.progress import log
from core.records import Hit
from core.settings import RetrievalSettings
from retrieval.analyzer import ANALYZERS
from retrieval.bm25 import RankBM25
from retrieval.bm25s_index import BM25sIndex
from retrieval.collection import Collection
from retrieval.hybrid import ReciprocalRankFusion
from retrieval.lucene import LuceneRetriever
from retrieval.retriever import Retriever
from retrieval.search_server import SearchServer

AUTO_LIMIT = 20_000  # `auto` selects rank_bm25 for at most this many passages
BM25_SETTINGS = ("analyzer", "k1", "b", "bm25_variant")
RANKING_SETTINGS = {  # engine -> settings that affect its rankings
    "rank_bm25": BM25_SETTINGS,
    "bm25s": BM25_SETTINGS,
    "dense": ("encoder", "pooling", "normalize", "query_prefix", "passage_prefix", "max_length", "dtype", "faiss"),
    "lucene": ("k1", "b", "prebuilt"),
    "http": ("url", "index", "fields"),
    "hybrid": ("hybrid", "rrf_k"),
}


def resolve_engine(settings: RetrievalSettings, collection: Collection) -> str:
    """The name of the engine; `auto` depends on the size of the collection."""
    if settings.engine != "auto":
        return settings.engine
    # bm25s has no `okapi`.
    return "rank_bm25" if len(collection) <= AUTO_LIMIT or settings.bm25_variant == "okapi" else "bm25s"


def build_engine(settings: RetrievalSettings, collection: Collection) -> Retriever:
    """Build the retrieval engine of a collection.

    Raises:
        InputError: a package, index or setting that the engine needs is missing.
    """
    name = resolve_engine(settings, collection)
    if settings.engine == "auto":
        log.info("retrieval: %s for %d passages", name, len(collection))
    if name == "hybrid":
        engines = [build_engine(replace(settings, engine=part), collection) for part in settings.hybrid]
        return ReciprocalRankFusion(engines, settings.rrf_k)
    if name == "rank_bm25":
        analyzer = ANALYZERS[settings.analyzer]()
        return RankBM25(collection.passages(), analyzer, settings.k1, settings.b, settings.bm25_variant)
    if name == "bm25s":
        return BM25sIndex(settings, collection)
    if name == "lucene":
        return LuceneRetriever(settings, collection)
    if name == "http":
        return SearchServer(settings)
    if name != "dense":
        raise ValueError(f"`{name}` is not a retrieval engine")
    try:
        from retrieval.dense import build_dense  # needs optional packages
    except ImportError as error:
        raise InputError(f"`retrieval.engine: dense`: {error}; install it: pip install -e '.[dense]'") from error
    return build_dense(settings, collection)


class PerDatasetRetriever:
    """One engine per data set; each query searches the collection of its data set."""

    def __init__(self, settings: RetrievalSettings, collections: Mapping[str, Collection]):
        self.engines = {name: build_engine(settings, collection) for name, collection in collections.items()}

    def search(self, queries: Sequence[tuple[str, str]], k: int) -> list[list[Hit]]:
        """Up to `k` hits, best first, for each pair of a data set and a query."""
        rankings = {
            name: iter(engine.search([query for dataset, query in queries if dataset == name], k))
            for name, engine in self.engines.items()
        }
        return [next(rankings[dataset]) for dataset, _ in queries]


def ranking_config(settings: RetrievalSettings, collections: Mapping[str, Collection]) -> dict[str, Any]:
    """The settings that a stage records: everything that can change a ranking.

    With `auto`, the data sets of `collections` may have different engines.
    """
    engines = {name: resolve_engine(settings, collection) for name, collection in collections.items()}
    engine = next(iter(engines.values()))
    parts = settings.hybrid if engine == "hybrid" else [engine]
    names = {"k", "depth", *(name for part in {engine, *parts} for name in RANKING_SETTINGS[part])}
    config = {"engine": by_data_set(engines)} | {name: getattr(settings, name) for name in sorted(names)}
    if "dense" in parts:
        config["encoder_identity"] = model_identity(settings.encoder)
    return config
