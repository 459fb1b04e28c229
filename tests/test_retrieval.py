"""BM25 against rank-bm25 and by hand, analyzers, fusion by hand, and the order of written runs."""

import math

import pytest
from rank_bm25 import BM25Okapi

from core.errors import InputError
from core.records import Hit, Passage
from core.trec import strict_run, write_run
from retrieval.analyzer import ANALYZERS, plain
from retrieval.bm25 import RankBM25
from retrieval.hybrid import ReciprocalRankFusion

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
    """Compares term by term with rank-bm25's scores, with its idf replaced by Lucene's."""
    theirs = BM25Okapi([plain(text) for text in TEXTS], k1=1.5, b=0.75)
    seen = {word: sum(word in document for document in theirs.doc_freqs) for word in theirs.idf}
    theirs.idf = {word: math.log(1 + (5 - n + 0.5) / (n + 0.5)) for word, n in seen.items()}
    ours = RankBM25(PASSAGES, plain, k1=1.5, b=0.75)
    for query in ("the fox", "brown sea", "quiet the the dog"):
        expected = theirs.get_scores(plain(query))
        for hit in ours.search([query], 5)[0]:
            assert hit.score == pytest.approx(expected[int(hit.doc[1])], rel=1e-12)


def test_a_collection_without_words_is_refused():
    with pytest.raises(InputError, match="no words"):
        RankBM25([Passage("d", "...")], plain)


def test_bm25_plus_by_hand():
    # idf = log(6 / 2); each document with the term gets 1 more than its saturated frequency, the others nothing.
    hits = RankBM25(PASSAGES, plain, k1=0.9, b=0.4, variant="plus").search(["sea"], 5)[0]
    frequency = 1.9 / (1 + 0.9 * (1 - 0.4 + 0.4 * 2 / 3.6))
    assert [hit.doc for hit in hits] == ["d2", "d3"]
    assert hits[0].score == pytest.approx(math.log(3) * (1 + frequency), rel=1e-12)


def test_bm25_l_by_hand():
    # "the" twice in d1, of 6 words: c = 2 / (1 - b + b 6 / 3.6), idf (k1 + 1) (c + .5) / (k1 + c + .5).
    idf, c = math.log(6 / 5.5), 2 / (1 - 0.4 + 0.4 * 6 / 3.6)
    hits = RankBM25(PASSAGES, plain, k1=0.9, b=0.4, variant="l").search(["the"], 5)[0]
    scores = {hit.doc: hit.score for hit in hits}
    assert scores["d1"] == pytest.approx(idf * 1.9 * (c + 0.5) / (0.9 + c + 0.5), rel=1e-12)


def test_okapi_alone_scores_below_zero():
    """If most terms are in most documents, rank-bm25's lower bound for their idf is negative."""
    passages = [Passage("a", "x y"), Passage("b", "x y"), Passage("c", "x y z")]
    for variant in ("lucene", "okapi", "plus", "l"):
        hits = RankBM25(passages, plain, variant=variant).search(["x"], 9)[0]
        assert len(hits) == 3 and all((hit.score < 0) == (variant == "okapi") for hit in hits)
        assert [hit.doc for hit in RankBM25(passages, plain, variant=variant).search(["z"], 9)[0]] == ["c"]


def test_reciprocal_rank_fusion_by_hand():
    class Fixed:
        def __init__(self, *docs):
            self.hits = [Hit(doc, 9.0 - rank) for rank, doc in enumerate(docs)]

        def search(self, queries, k):
            return [self.hits[:k] for _ in queries]

    # a: 1/(2+1) + 1/(2+3); b: 1/(2+2) alone; c: 1/(2+3) + 1/(2+1), as a; d: 1/(2+2) alone.
    hits = ReciprocalRankFusion([Fixed("a", "b", "c"), Fixed("c", "d", "a")], rrf_k=2).search(["q"], 9)[0]
    assert hits == [Hit("a", 1 / 3 + 1 / 5), Hit("c", 1 / 3 + 1 / 5), Hit("b", 1 / 4), Hit("d", 1 / 4)]
    assert ReciprocalRankFusion([Fixed("a"), Fixed()], rrf_k=60).search(["q"], 1) == [[Hit("a", 1 / 61)]]


def test_english_analyzer_stems_and_stops():
    assert ANALYZERS["english"]()("The cats are running") == ["cat", "run"]


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("The U.S.A.\u2019S Ann's dogs' running", ["u.s.a", "s", "ann", "dog", "run"]),
        ("wi-fi 3.5kg 1,000 foo_bar don't", ["wi", "fi", "3.5kg", "1,000", "foo_bar", "don't"]),
        ("It is not such a relational THING", ["relat", "thing"]),
        ("us so of ties", ["us", "so", "ti"]),
        ("東京 カタカナ ひら __ a_ 😀", ["東", "京", "カタカナ", "ひ", "ら", "a_"]),
        ("cafe\u0301's straße", ["cafe\u0301", "straße"]),
    ],
)
def test_lucene_analyzer(text, terms):
    """By hand from the rules of StandardTokenizer, EnglishPossessiveFilter, StopFilter and PorterStemFilter."""
    assert ANALYZERS["lucene"]()(text) == terms


def test_runs_fall_strictly(tmp_path):
    tied = {"q 1": [Hit("z", 1.0), Hit("a", 1.0), Hit("m", 1.0)]}
    assert strict_run(tied) == {"q 1": {"z": 3.0, "a": 2.0, "m": 1.0}}
    write_run(tmp_path / "x.run", tied, "tag")
    assert (tmp_path / "x.run").read_text() == "q%201 Q0 z 1 3 tag\nq%201 Q0 a 2 2 tag\nq%201 Q0 m 3 1 tag\n"
