"""GROGU computed by hand: entropy, key tokens, fallback, the four utilities."""

import math

import pytest
import torch

from core.generation import entropy
from core.records import TokenStats
from core.scoring_settings import RewardSettings
from scoring.grogu import key_tokens, score_of, utility

LOG2 = math.log(2)


def test_entropy_by_hand():
    # uniform over 4: log 4; half, a quarter, two eighths: 1.75 log 2; certain: 0, and impossible tokens add 0, not NaN
    p = torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.5, 0.25, 0.125, 0.125], [1.0, 0.0, 0.0, 0.0]])
    assert entropy(p.log()).tolist() == pytest.approx([2 * LOG2, 1.75 * LOG2, 0.0])


def test_key_tokens_are_those_the_documents_change_in_either_direction():
    h0, hd = [2.0, 1.0, 0.50, 0.30], [0.5, 0.96, 0.90, 0.25]
    assert key_tokens(h0, hd) == ([0, 2], "alpha")  # changes 1.5, 0.04, -0.4, 0.05: not above 0.05
    assert key_tokens(h0, hd, alpha=0.03) == ([0, 1, 2, 3], "alpha")


def test_fallback_takes_the_highest_entropy():
    h0, hd = [0.1, 0.7, 0.3], [0.1, 0.7, 0.31]
    assert key_tokens(h0, hd) == ([1], "fallback")  # ceil(0.1 * 3) = 1
    assert key_tokens(h0, hd, fallback=0.5) == ([1, 2], "fallback")  # ceil(1.5) = 2
    assert key_tokens([0.3, 0.3], [0.3, 0.3]) == ([0], "fallback")  # of equal values, the earlier
    assert key_tokens([0.30, 0.31], [0.33, 0.31], fallback_by="grounded") == ([0], "fallback")
    assert key_tokens([1.0] * 10, [1.0] * 10) == ([0], "fallback")  # 0.1 * 10 is 1, not 2 by rounding
    assert key_tokens([1.0] * 30, [1.0] * 30) == ([0, 1, 2], "fallback")


STATS = TokenStats(
    tokens=("a", "b", "c"), h0=(2.0, 1.0, 0.5), hd=(0.5, 1.02, 0.9), logp0=(-2.0, -1.0, -0.6), logpd=(-0.5, -1.0, -1.2)
)


@pytest.mark.parametrize(
    ("reward", "log_ppl", "expected"),
    [
        ("key_entropy", False, (1.5 - 0.4) / 2),  # keys 0 and 2
        ("entropy", False, (1.5 - 0.02 - 0.4) / 3),
        ("key_ppl", False, math.exp((2.0 + 0.6) / 2) - math.exp((0.5 + 1.2) / 2)),
        ("ppl", False, math.exp(3.6 / 3) - math.exp(2.7 / 3)),
        ("key_ppl", True, 1.3 - 0.85),
        ("ppl", True, 1.2 - 0.9),
    ],
)
def test_utilities_by_hand(reward, log_ppl, expected):
    assert utility(STATS, reward, [0, 2], log_ppl) == pytest.approx(expected, rel=1e-12)
    assert score_of(STATS, "abc", reward, RewardSettings(log_ppl=log_ppl)).value == pytest.approx(expected, rel=1e-12)


def test_the_record_names_the_rule():
    score = score_of(STATS, "abc", "key_entropy", RewardSettings())
    assert (score.key, score.rule, score.error) == ((0, 2), "alpha", None)


def test_an_empty_answer_has_no_score():
    score = score_of(TokenStats((), (), (), (), ()), "", "key_entropy", RewardSettings())
    assert score.value is None and score.error == "empty answer"


def test_not_a_number_has_no_score():
    stats = TokenStats(("a",), (math.nan,), (1.0,), (-1.0,), (-1.0,))
    score = score_of(stats, "a", "key_entropy", RewardSettings())
    assert score.value is None and "not a number" in score.error
