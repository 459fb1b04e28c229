"""The result table: splits by kind of turn and by depth, answers, and the note about a pool."""

import pytest

from core.records import EvaluationRecord, SystemResult, Turn
from tests.conftest import settings_of
from train.report_tables import compare_systems, evaluation_metrics, table_of

# Eight turns of one conversation, numbered 1 to 8.
TURNS = [
    Turn(
        id=f"c_{number}",
        history=tuple({"role": role, "content": "x"} for _ in range(number - 1) for role in ("user", "assistant")),
        question="q",
        relevant={"d": 1},
        kind="first" if number == 1 else "follow_up",
    )
    for number in range(1, 9)
]
MRR = {"c_1": 1.0, "c_2": 0.5, "c_3": 0.25, "c_4": 0.3, "c_5": 0.6, "c_6": 0.9, "c_7": 0.0, "c_8": 1.0}
RECORDS = {turn.id: EvaluationRecord(turn.id, {"original": SystemResult(query="q")}) for turn in TURNS}
EM = {"c_2": 1.0, "c_8": 0.0}  # the only turns that have answers


def metrics(*flags):
    return evaluation_metrics({"original": {"MRR@10": MRR, "EM": EM}}, TURNS, RECORDS, settings_of(*flags))


def test_depths_by_hand():
    parts = metrics()["by_depth"]
    assert list(parts) == ["1", "2", "3", "4-6", "7+"]
    assert [part["turns"] for part in parts.values()] == [1, 1, 1, 3, 2]
    assert [part["original"]["MRR@10"] for part in parts.values()] == pytest.approx([1.0, 0.5, 0.25, 0.6, 0.5])
    assert [part["original"]["EM"] for part in parts.values()] == [None, 1.0, None, None, 0.0]


def test_kinds_by_hand():
    parts = metrics()["by_kind"]
    assert {kind: part["turns"] for kind, part in parts.items()} == {"first": 1, "follow_up": 7}
    assert parts["follow_up"]["original"] == pytest.approx({"MRR@10": (sum(MRR.values()) - 1) / 7, "EM": 0.5})


def test_turns_without_a_user_message_before_are_first_turns():
    assert Turn("a", (), "q").depth == 1
    assert Turn("a", ({"role": "assistant", "content": "Welcome."},), "q").depth == 1


def test_systems_are_compared_on_the_turns_that_both_have_a_value_for():
    values = {"dpo": {"key_entropy": {"a": 3.0, "b": 1.0}}, "base": {"key_entropy": {"b": 0.5, "c": 9.0}}}
    (row,) = compare_systems(values, ["key_entropy", "EM"], {"a": "x", "b": "y", "c": "z"}, 10)
    assert (row["a"], row["b"], row["metric"], row["difference"]) == ("dpo", "base", "key_entropy", 0.5)


@pytest.mark.parametrize("final", ["dpo", "sft"])
@pytest.mark.parametrize("baseline", ["base", "original"])
def test_the_systems_of_the_verdict_are_compared(final, baseline):
    values = {final: {"EM": {"a": 1.0}}, baseline: {"EM": {"a": 0.5}}}
    (row,) = compare_systems(values, ["EM"], {"a": "x"}, 10)
    assert (row["a"], row["b"], row["difference"]) == (final, baseline, 0.5)


def test_the_table_shows_both_splits_with_answers():
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table_of(metrics()).splitlines()]
    assert ["depth", "turns", "original MRR@10"] in rows and ["4-6", "3", "0.600"] in rows
    assert ["depth", "turns", "original EM"] in rows and ["2", "1", "1.000"] in rows and ["4-6", "3", ""] in rows
    assert ["kind", "turns", "original EM"] in rows and ["follow_up", "7", "0.500"] in rows


def test_only_a_table_of_a_pool_says_so():
    assert "pooled" not in table_of(metrics()) and metrics()["pooled"] is False
    for size in ("0", "50"):
        assert "*pooled*" in table_of(metrics("--data.pool", size)) and metrics("--data.pool", size)["pooled"] is True
