"""Pairs by hand: best and worst, reasons, the gap filter."""

import pytest
from scoring.pairs import Scored, best_and_worst, no_pairs, select_pairs

from core.records import Candidate, Turn


def scored(name, *scores, texts=None, counts=None):
    texts = texts or [f"query {i}" for i in range(len(scores))]
    counts = counts or [1] * len(scores)
    candidates = tuple(Candidate(t, t, -1.0 - i, 3, c) for i, (t, c) in enumerate(zip(texts, counts, strict=True)))
    return Scored(Turn(name, (), "q?"), candidates, tuple(scores))


def test_best_and_worst():
    assert best_and_worst(scored("t", 0.2, 0.9, None, -0.4)) == (1, 3)
    assert best_and_worst(scored("t", 0.2, None)) == "fewer than two scored candidates"
    assert best_and_worst(scored("t", 0.2, 0.2)) == "tie"
    assert best_and_worst(scored("t", 0.2, 0.9, texts=["Who?", "who"])) == "same text"


def test_among_equals_the_more_likely_one():
    assert best_and_worst(scored("t", 0.9, 0.9, 0.1, 0.1, counts=[1, 3, 1, 2])) == (1, 3)
    assert best_and_worst(scored("t", 0.9, 0.9, 0.1, 0.1)) == (0, 2)  # log-probabilities fall with the position


def test_the_filter_by_hand():
    turns = [
        scored("a", 0.0, 1.0),
        scored("b", 0.0, 0.1),
        scored("c", 0.0, 0.5),
        scored("d", 0.0, 0.3),
        scored("e", 0.1, 0.1),
    ]
    pairs, dropped = select_pairs(turns, drop_fraction=0.5)
    assert [pair.id for pair in pairs] == ["a", "c"]
    assert dropped == {"tie": 1, "among the smallest gaps": 2}
    pairs, dropped = select_pairs(turns, drop_fraction=0.5, min_gap=0.7)
    assert [pair.id for pair in pairs] == ["a"] and dropped["gap below min_gap"] == 1
    assert len(select_pairs(turns, drop_fraction=0.0)[0]) == 4
    assert select_pairs(turns, drop_fraction=1.0)[0] == []


def test_a_pair_is_what_trl_reads():
    pair = select_pairs([scored("a", 0.25, 1.0)], drop_fraction=0.0)[0][0]
    assert pair.prompt[-1] == {"role": "user", "content": "User: q?"}
    assert pair.chosen == [{"role": "assistant", "content": "query 1"}]
    assert pair.rejected == [{"role": "assistant", "content": "query 0"}]
    assert (pair.score_chosen, pair.score_rejected, pair.gap, pair.reward) == (1.0, 0.25, 0.75, "key_entropy")


@pytest.mark.parametrize(
    ("turns", "fraction", "cure"),
    [
        ([scored("a", 0.1, 0.1)], 0.5, "1 tie"),
        ([scored("a", 0.1)], 0.5, "raise `rewriter.n`"),
        ([scored("a", 0.1, 0.4)], 1.0, "lower `pairs.drop_fraction`"),
    ],
)
def test_no_pair_left_says_why_and_what_to_change(turns, fraction, cure):
    pairs, dropped = select_pairs(turns, drop_fraction=fraction)
    assert pairs == [] and cure in no_pairs(len(turns), dropped)
