"""BM25 against rank-bm25 itself and by hand; runs whose order cannot change."""

import math

import pytest
from rank_bm25 import BM25Okapi

from core.errors import InputError
from core.records import Hit, Passage
from retrieval.analyzer import analyzer_of, plain
from retrieval.bm25 import RankBM25
from retrieval.trec import strict_run, write_run

TEXTS = ["the red fox", "the brown dog and the fox", "the sea", "a quiet lake by the sea", "the"]
PASSAGES = [Passage(f"d{i}", text) for i, text in enumerate(TEXTS)]


def test_a_score_by_hand():
    # "sea" is in 2 of 5 documents: idf = log(1 + (5 - 2 + .5) / (2 + .5)); d2 has 2 terms, the mean is 18 / 5 = 3.6.
    idf = math.log(1 + 3.5 / 2.5)
    expected = idf * 1 * (0.9 + 1) / (1 + 0.9 * (1 - 0.4 + 0.4 * 2 / 3.6))
    hits = RankBM25(PASSAGES, plain, k1=0.9, b=0.4).search(["sea"], 5)[0]
    assert [hit.doc for hit in hits] == ["d2", "d3"]
    assert hits[0].score == pytest.approx(expected, rel=1e-12)


def test_equals_rank_bm25_where_its_idf_is_the_same():
    """Term by term, rank-bm25's own scores with its idf exchanged for Lucene's."""
    theirs = BM25Okapi([plain(text) for text in TEXTS], k1=1.5, b=0.75)
    seen = {word: sum(word in document for document in theirs.doc_freqs) for word in theirs.idf}
    theirs.idf = {word: math.log(1 + (5 - n + 0.5) / (n + 0.5)) for word, n in seen.items()}
    ours = RankBM25(PASSAGES, plain, k1=1.5, b=0.75)
    for query in ("the fox", "brown sea", "quiet the the dog"):
        expected = theirs.get_scores(plain(query))
        for hit in ours.search([query], 5)[0]:
            assert hit.score == pytest.approx(expected[int(hit.doc[1])], rel=1e-12)


def test_a_term_of_most_documents_never_scores_below_zero():
    hits = RankBM25(PASSAGES, plain).search(["the"], 9)[0]
    assert len(hits) == 5 and all(hit.score > 0 for hit in hits)


def test_no_known_term_no_hit():
    assert RankBM25(PASSAGES, plain).search(["zebra", ""], 3) == [[], []]


def test_a_collection_without_words_is_refused():
    with pytest.raises(InputError, match="no words"):
        RankBM25([Passage("d", "...")], plain)


def test_english_analyzer_stems_and_stops():
    assert analyzer_of("english")("The cats are running") == ["cat", "run"]
    with pytest.raises(InputError, match="english, plain"):
        analyzer_of("klingon")


def test_runs_fall_strictly(tmp_path):
    tied = {"q 1": [Hit("z", 1.0), Hit("a", 1.0), Hit("m", 1.0)]}
    assert strict_run(tied) == {"q 1": {"z": 3.0, "a": 2.0, "m": 1.0}}
    write_run(tmp_path / "x.run", tied, "tag")
    assert (tmp_path / "x.run").read_text() == "q_1 Q0 z 1 3 tag\nq_1 Q0 a 2 2 tag\nq_1 Q0 m 3 1 tag\n"
