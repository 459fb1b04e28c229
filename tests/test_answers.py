"""Answers as SQuAD compares them."""

import pytest

from scoring.answers import abstains, contains, exact_match, token_f1


@pytest.mark.parametrize(
    ("answer", "references", "em", "f1", "inside"),
    [
        ("The Port of Verna!", ["port of verna"], 1, 1, 1),
        ("Port Verna", ["Verna"], 0, 2 / 3, 1),  # precision 1/2, recall 1
        ("Vernal", ["Verna"], 0, 0, 0),
        ("1953", ["1954", "1953"], 1, 1, 1),
        ("", ["x"], 0, 0, 0),
        ("x", [], 0, 0, 0),
    ],
)
def test_answer_measures_by_hand(answer, references, em, f1, inside):
    assert exact_match(answer, references) == em
    assert token_f1(answer, references) == pytest.approx(f1)
    assert contains(answer, references) == inside


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("NO-RESPONSE", True),
        ("I don't know.", True),
        ("It is not mentioned.", True),
        ("Port Verna", False),
        ("unknown", True),
    ],
)
def test_abstentions(answer, expected):
    assert abstains(answer) is expected
