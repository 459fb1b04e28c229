"""What a retriever is, and the one that the settings name."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from core.data_paths import by_set
from core.records import Hit
from core.runtime import log
from core.settings import RetrievalSettings
from retrieval.collection import Collection

SMALL = 20_000  # passages up to which `auto` takes rank_bm25
BM25 = ("analyzer", "k1", "b", "bm25_variant")
READS = {  # the settings that decide an engine's rankings
    "rank_bm25": BM25,
    "bm25s": BM25,
    "dense": ("encoder", "pooling", "normalize", "query_prefix", "passage_prefix", "max_length", "dtype", "faiss"),
    "lucene": ("k1", "b", "prebuilt"),
    "http": ("url", "index", "fields"),
}


class Retriever(Protocol):
    """Anything that ranks documents for queries."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Up to `k` hits per query, best first, scores never rising; an empty list where nothing matches."""
        ...


class RetrieverOfSets:
    """A retriever for each data set: every query is searched in the collection of its own set.

    Args:
        settings: of the retrievers.
        collections: data set -> its collection.
    """

    def __init__(self, settings: RetrievalSettings, collections: Mapping[str, Collection]):
        self.retrievers = {name: retriever_of(settings, collection) for name, collection in collections.items()}

    def search(self, queries: Sequence[tuple[str, str]], k: int) -> list[list[Hit]]:
        """Up to `k` hits for each query, best first.

        Args:
            queries: data set and query.
            k: most hits of a query.
        """
        hits: list[list[Hit]] = [[] for _ in queries]
        for name, retriever in self.retrievers.items():
            places = [i for i, (dataset, _) in enumerate(queries) if dataset == name]
            rankings = retriever.search([queries[i][1] for i in places], k) if places else []
            for i, ranking in zip(places, rankings, strict=True):
                hits[i] = ranking
        return hits


def chosen_engine(settings: RetrievalSettings, collection: Collection) -> str:
    """The name of the engine, `auto` made definite."""
    if settings.engine != "auto":
        return settings.engine
    return "rank_bm25" if len(collection) <= SMALL else "bm25s"


def recorded(settings: RetrievalSettings, collection: Collection) -> dict[str, Any]:
    """What a stage records of the settings: all that can change a ranking of the engine that is used."""
    engine = chosen_engine(settings, collection)
    engines = settings.hybrid if engine == "hybrid" else [engine]
    names = {"k", "depth", *(name for one in engines for name in READS[one])}
    names |= {"hybrid", "rrf_k"} if engine == "hybrid" else set()
    decided = {"engine": engine} | {name: getattr(settings, name) for name in sorted(names)}
    if "dense" in engines:
        from retrieval.encoder_files import identity_of

        decided["encoder_identity"] = identity_of(settings.encoder)
    return decided


def recorded_of_sets(settings: RetrievalSettings, collections: Mapping[str, Collection]) -> dict[str, Any]:
    """As `recorded`, for a collection of each data set: `auto` may choose another engine for each."""
    each = {name: recorded(settings, collection) for name, collection in collections.items()}
    return next(iter(each.values())) | {"engine": by_set({name: one["engine"] for name, one in each.items()})}


def retriever_of(settings: RetrievalSettings, collection: Collection) -> Retriever:
    """The retriever that `retrieval.engine` names, over a collection.

    Raises:
        InputError: the engine lacks what it needs; says what.
    """
    engine = chosen_engine(settings, collection)
    if settings.engine == "auto":
        log.info("retrieval: %s for %d passages", engine, len(collection))
    if engine == "hybrid":
        from retrieval.fusion import Fusion

        return Fusion([single(name, settings, collection) for name in settings.hybrid], settings.rrf_k)
    return single(engine, settings, collection)


def single(engine: str, settings: RetrievalSettings, collection: Collection) -> Retriever:
    """The retriever of an engine that is not made of others."""
    if engine == "rank_bm25":
        from retrieval.analyzer import analyzer_of
        from retrieval.bm25 import RankBM25

        analyzer = analyzer_of(settings.analyzer)
        return RankBM25(collection.passages(), analyzer, settings.k1, settings.b, settings.bm25_variant)
    if engine == "bm25s":
        from retrieval.saved_bm25 import saved_bm25

        return saved_bm25(settings, collection)
    if engine == "dense":
        from retrieval.dense import dense_retriever

        return dense_retriever(settings, collection)
    if engine == "lucene":
        from retrieval.lucene import lucene_retriever

        return lucene_retriever(settings, collection)
    from retrieval.search_server import search_server

    return search_server(settings)
