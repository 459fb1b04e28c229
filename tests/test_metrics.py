"""Measures computed by hand and against trec_eval's results, and paired comparison."""

import pytest

from core.errors import InputError
from retrieval.metrics import compare, parse_measure, per_query

# q1: relevant documents a and c at ranks 2 and 4; q2: x not found; q3: nothing relevant; q4: not in the run.
QRELS = {"q1": {"a": 1, "c": 1, "b": 0}, "q2": {"x": 2}, "q3": {"y": 0}, "q4": {"z": 1}}
RUN = {"q1": {"b": 5.0, "a": 4.0, "d": 3.0, "c": 2.0}, "q2": {"y": 1.0}}


def test_measures_by_hand():
    values = per_query(QRELS, RUN, ["MRR@10", "MAP", "P@2", "R@3", "Success@1", "nDCG@3"])
    assert set(values["MRR@10"]) == {"q1", "q2", "q4"}  # q3 has no relevant document and is left out
    assert values["MRR@10"] == {"q1": 0.5, "q2": 0.0, "q4": 0.0}
    assert values["MAP"]["q1"] == pytest.approx((1 / 2 + 2 / 4) / 2)
    assert values["P@2"]["q1"] == 0.5
    assert values["R@3"]["q1"] == 0.5
    assert values["Success@1"]["q1"] == 0.0
    # gain 1 at rank 2: 1 / log2(3); ideal: 1 + 1 / log2(3)
    assert values["nDCG@3"]["q1"] == pytest.approx(0.6309297535714575 / 1.6309297535714575)


def test_an_unknown_measure_is_named():
    with pytest.raises(InputError, match="`MRRR@10` is not a measure"):
        parse_measure("MRRR@10")


def test_trec_eval_golden(shared_data):
    def table(path, value):
        rows = [line.split() for line in (shared_data / "trec_eval" / path).read_text().splitlines()]
        by_query = {}
        for row in rows:
            by_query.setdefault(row[0], {})[row[2]] = value(row)
        return by_query

    qrels = table("qrels.test", lambda row: int(row[3]))
    run = table("results.test", lambda row: float(row[4]))
    qrels = {query: qrels[query] for query in run}
    golden = {
        "MRR": 0.4064,
        "MAP": 0.1785,
        "nDCG": 0.4021,
        "nDCG@5": 0.2768,
        "nDCG@10": 0.3016,
        "P@5": 0.2667,
        "P@10": 0.3,
    }
    values = per_query(qrels, run, list(golden))
    assert {name: round(sum(v.values()) / len(v), 4) for name, v in values.items()} == golden


def test_comparison_of_equals_and_of_unequals():
    groups = {f"t{i}": f"c{i // 2}" for i in range(40)}
    low = {turn: 0.2 for turn in groups}
    high = {turn: 0.2 + 0.1 * (i % 3) for i, turn in enumerate(groups)}
    same = compare(low, low, groups)
    assert (same.difference, same.low, same.high, same.p) == (0.0, 0.0, 0.0, 1.0)
    better = compare(high, low, groups)
    assert better.difference == pytest.approx(sum(0.1 * (i % 3) for i in range(40)) / 40)
    assert 0 < better.low < better.difference < better.high and better.p < 0.01
    assert compare(high, low, groups) == better  # seeded


def test_turns_of_one_conversation_are_no_independent_evidence():
    a, b = {f"t{i}": 1.0 for i in range(40)}, {f"t{i}": 0.0 for i in range(40)}
    one = compare(a, b, {turn: "c" for turn in a})
    assert one.p > 0.9  # the sign of a single conversation can be flipped


@pytest.mark.parametrize("name", ["MRR@10", "RR@10", "MRR@2", "MRR(rel=2)@10", "MRR"])
def test_reciprocal_rank_by_every_name(name):
    run = {"q": {"a": 3.0, "b": 2.0, "c": 1.0}}
    expected = {"MRR@2": 0.0}.get(name, 1 / 3)
    assert per_query({"q": {"c": 2}}, run, [name])[name]["q"] == pytest.approx(expected)
