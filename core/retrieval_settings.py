"""Settings of the retriever."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge

from core.errors import InputError
from core.schema import Dtype, Fraction, NonNegative, Positive, Validated
from core.urls import check_url

SingleEngine = Literal["rank_bm25", "bm25s", "dense", "lucene", "http"]


@dataclass(kw_only=True)
class RetrievalSettings(Validated):
    """Retriever.

    Args:
        engine: `auto` (`rank_bm25` up to 20,000 passages or for `okapi`, else `bm25s`), `rank_bm25` (exact, for small
            collections), `bm25s` (an index on disk), `dense`, `lucene`, `http` (a running OpenSearch or Elasticsearch)
            or `hybrid` (two of them).
        analyzer: `english` (lower case, stop words, Snowball stems), `lucene` (as Lucene's EnglishAnalyzer) or `plain`
            (lower-case words).
        k: documents given to the generator.
        depth: documents per ranking in the evaluation.
        k1: BM25 term-frequency saturation.
        b: BM25 length normalization.
        bm25_variant: `lucene` (BM25 with Lucene's idf), `okapi` (rank-bm25's Okapi; frequent terms can score below
            zero; not for bm25s), `plus` (BM25+) or `l` (BM25L).
        hybrid: for `hybrid`: the two engines.
        rrf_k: for `hybrid`: the constant of reciprocal rank fusion.
        url: for `http`: the server, such as https://search.example.org:9200.
        index: for `http`: the index to search.
        fields: for `http`: the text fields of the index to search.
        retries: for `http`: retries of a request when the server is busy or unavailable.
        cache: folder for collections and indexes; by default `query-rewriter-trainer` in the user's cache.
        encoder: dense: folder or Hub id of a text encoder.
        pooling: dense: `mean` (default) or `cls`, for a plain Transformers encoder.
        normalize: dense: normalize vectors to length 1; by default as configured by the encoder.
        query_prefix: dense: text before each query; by default the encoder's own.
        passage_prefix: dense: text before each passage; by default the encoder's own.
        max_length: dense: maximum tokens of a text; by default the encoder's own.
        dtype: dense: type of the encoder's weights.
        batch_tokens: dense: tokens per batch.
        faiss: dense: `flat` (exact), `ivf` or `hnsw` (approximate, faster).
        prebuilt: lucene: name of a prebuilt index of Pyserini, or folder of a Lucene index; by default an index is
            built from the collection.
    """

    engine: Literal["auto", SingleEngine, "hybrid"] = "auto"
    analyzer: Literal["english", "lucene", "plain"] = "english"
    k: Positive = 3
    depth: Positive = 100
    k1: Annotated[float, Ge(0)] = 0.9
    b: Fraction = 0.4
    bm25_variant: Literal["lucene", "okapi", "plus", "l"] = "lucene"
    hybrid: list[SingleEngine] = field(default_factory=list)
    rrf_k: NonNegative = 60
    url: str | None = None
    index: str | None = None
    fields: list[str] = field(default_factory=lambda: ["title", "text"])
    retries: NonNegative = 5
    cache: str | None = None
    encoder: str | None = None
    pooling: Literal["mean", "cls"] | None = None
    normalize: bool | None = None
    query_prefix: str | None = None
    passage_prefix: str | None = None
    max_length: Positive | None = None
    dtype: Dtype = "float32"
    batch_tokens: Positive = 16384
    faiss: Literal["flat", "ivf", "hnsw"] = "flat"
    prebuilt: str | None = None


def check_engines(retrieval: RetrievalSettings, sets: int) -> None:
    """Reject engines that lack a setting, or that cannot search several `data.sets`."""
    engines = retrieval.hybrid if retrieval.engine == "hybrid" else [retrieval.engine]
    if retrieval.engine == "hybrid" and len(set(engines)) != 2:
        raise InputError(f"`retrieval.hybrid` must name two engines, such as [bm25s, dense]; got {engines}.")
    for engine, name in (("http", "url"), ("http", "index"), ("http", "fields"), ("dense", "encoder")):
        if engine in engines and not getattr(retrieval, name):
            raise InputError(
                f"`retrieval.engine: {engine}` needs `retrieval.{name}`; set it with `--retrieval.{name} ...`."
            )
    if "http" in engines:
        check_url("retrieval.url", retrieval.url, "SEARCH_USER and SEARCH_PASSWORD")
    shared = "index" if "http" in engines else "prebuilt" if "lucene" in engines and retrieval.prebuilt else None
    if sets > 1 and shared:
        raise InputError(
            f"`retrieval.{shared}` names one index, but `data.sets` has {sets} collections; run each set alone, or "
            "choose an engine that builds an index of each collection, such as `--retrieval.engine bm25s`."
        )
    if "bm25s" in engines and retrieval.bm25_variant == "okapi":
        raise InputError(
            "`retrieval.bm25_variant: okapi` is for `retrieval.engine: rank_bm25`; bm25s has `lucene`, `plus` and `l`."
        )
