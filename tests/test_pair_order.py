"""How rewards order the candidates of a turn, beside their reciprocal ranks."""

import pytest

from scoring.pair_order import ScoredCandidates, pair_order


def test_shares_by_hand():
    turns = [
        ScoredCandidates((3.0, 1.0, 1.0), (0.5, 1.0, 0.0)),  # wrong, right, tie
        ScoredCandidates((2.0, None, 1.0), (1.0, 0.5, 1.0)),  # equal ranks: no pair
        ScoredCandidates((None,), (1.0,)),  # nothing is known
    ]
    order = pair_order(turns)
    assert order["pairs"] == 3 and order["share"] == 0.5
    assert order["best"] == pytest.approx((0.5 + 1.0) / 2)
    assert order["worst"] == pytest.approx((0.5 + 1.0) / 2)  # of the two lowest the mean, .5; then 1
    assert order["mean"] == pytest.approx((0.5 + 1.0) / 2)


def test_nothing_to_order():
    assert pair_order([]) == {"pairs": 0, "share": None, "best": None, "worst": None, "mean": None}
