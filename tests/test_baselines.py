"""Rewards that need labels, computed by hand."""

import math

import pytest

from scoring.baselines import answer_logprob, reciprocal_rank


def test_reciprocal_rank():
    assert reciprocal_rank([False, True, True]) == 0.5
    assert reciprocal_rank([False, False]) == 0.0
    assert reciprocal_rank([]) == 0.0


def test_answer_logprob_by_hand():
    # P(d) = softmax(log 3, 0) = 3/4, 1/4; P(a|d) = .2, .8
    expected = math.log(0.75 * 0.2 + 0.25 * 0.8)
    assert answer_logprob([math.log(3), 0.0], [math.log(0.2), math.log(0.8)]) == pytest.approx(expected)


def test_answer_logprob_of_small_numbers():
    assert answer_logprob([900.0, 900.0], [-2000.0, -2000.0]) == pytest.approx(-2000.0)
    assert answer_logprob([1.0], [float("-inf")]) == float("-inf")
