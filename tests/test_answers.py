"""Answers compared as in SQuAD."""

import pytest

from scoring.answers import abstains, contains, exact_match, states_answer, token_f1


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


@pytest.mark.parametrize(
    ("query", "states"),
    [
        ("The Patriots' coach is Mike Pence", True),
        ("No, the Arizona Cardinals do not play there", True),
        ("The distance between the moon and the earth.", True),
        ("Who is the coach of the Patriots?", False),
        ("how old is the moon", False),
        ("coach New England Patriots 2020", False),
        ("Tell me who the coach is", False),
        ("", False),
    ],
)
def test_queries_that_state_an_answer(query, states):
    assert states_answer(query) == states
