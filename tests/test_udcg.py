"""UDCG: published values, and a case computed by hand."""

import math

import pytest

from scoring.udcg import udcg

# Llama-3.2-3B-Instruct on the published sample: relevance, no_res_prob, UDCG.
GOLDEN = [
    (
        [True, True, False, False, False],
        [2.086162567138672e-06, 1.341104507446289e-05, 0.1318359375, 0.1812744140625, 0.02081298828125],
        0.5553808928170055,
    ),
    (
        [True, True, False, False, False],
        [5.960464477539063e-08, 6.616115570068359e-06, 0.00018215179443359375, 0.006114959716796875,
         0.0093536376953125],
        0.5501411475208001,
    ),
    (
        [True, False, False, False, False],
        [3.0100345611572266e-05, 0.00010311603546142578, 0.007602691650390625, 0.01299285888671875,
         0.00013053417205810547],
        0.4837510250741193,
    ),
]  # fmt: skip


@pytest.mark.parametrize("relevant, no_res, expected", GOLDEN)
def test_published_values(relevant, no_res, expected):
    assert udcg(no_res, relevant) == pytest.approx(expected, abs=1e-12)


def test_by_hand():
    # one relevant passage that helps fully, one distractor that misleads in 60% of cases
    total = (1.0 * 1.0 - 0.333 * 0.6) / 2
    assert udcg([0.0, 0.4], [True, False]) == pytest.approx(1 / (1 + math.exp(-total)))
    per_class = 1.0 - 0.333 * 0.6
    assert udcg([0.0, 0.4], [True, False], normalize="per_class") == pytest.approx(1 / (1 + math.exp(-per_class)))
    assert udcg([0.5], [False], 1.0, -1.0) == pytest.approx(1 / (1 + math.exp(0.5)))


def test_range_of_the_default():
    assert udcg([0.0] * 3, [False] * 3) == pytest.approx(0.417, abs=1e-3)
    assert udcg([0.0] * 3, [True] * 3) == pytest.approx(0.731, abs=1e-3)


def test_no_passage():
    with pytest.raises(ValueError, match="at least one"):
        udcg([], [])
