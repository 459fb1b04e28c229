"""`python -m scoring.validity`: win rates by hand, the lists, and the output files."""

import json
import random
import xml.etree.ElementTree

import pytest

from core.errors import InputError
from scoring.validity import main
from scoring.validity_cases import gold_and_without
from scoring.validity_report import plot_of, win_rate
from tests.conftest import call
from tests.test_utility import ITEM


def test_win_rate_by_hand():
    result = win_rate([(2.0, 1.0), (1.0, 1.0), (3.0, 1.0), (0.0, 1.0), (5.0, 1.0), (None, 1.0)])
    assert result["rate"] == (3 + 0.5) / 5
    assert (result["wins"], result["losses"], result["ties"], result["without_value"]) == (3, 1, 1, 1)
    assert result["p"] == pytest.approx(2 * (4 + 1) / 16)  # two-sided, 3 or more of 4 fair coins
    assert win_rate([])["rate"] is None


def test_both_lists_share_the_retrieved_documents():
    for seed in range(5):
        gold, without = gold_and_without({"g"}, ["a", "g", "b", "c"], 3, random.Random(seed))
        assert without == ["a", "b", "c"] and len(gold) == 3 and "g" in gold
        assert [doc for doc in gold if doc != "g"] == ["a", "b"]


def test_both_lists_are_of_equal_length_where_few_documents_are_found():
    for seed in range(5):
        gold, without = gold_and_without({"g"}, ["a", "g", "b"], 10, random.Random(seed))
        assert without == ["a", "b"] and len(gold) == 2 and "g" in gold


def test_names_are_escaped_in_the_plot():
    report = {"rewards": {"<b>&": {"gold over without": {"rate": 0.5}}}}
    root = xml.etree.ElementTree.fromstring(plot_of(report))
    assert any(element.text == "<b>&" for element in root.iter())


def test_a_reward_that_never_has_a_value_is_not_shown_as_zero():
    plot = plot_of(
        {"rewards": {name: {"gold over without": {"rate": rate}} for name, rate in (("a", 0.0), ("b", None))}}
    )
    texts = [element.text for element in xml.etree.ElementTree.fromstring(plot).iter()]
    assert {"a", "0.00", "b", "no value"} <= set(texts)


def test_the_command(random_llama, tmp_path):
    items = [ITEM | {"question": f"Where was Talpa born? {n}"} for n in range(5)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    words = ["--input", tmp_path / "in.jsonl", "--model", random_llama, "--output", tmp_path / "out"]
    output = call(main, *words)
    report = json.loads((tmp_path / "out/validity.json").read_text())
    assert report["questions"] == 5 and report["lists"] == 10
    assert report["rewards"]["reciprocal_rank"]["gold over without"]["rate"] == 1.0
    assert {"key_entropy", "entropy", "key_ppl", "ppl", "udcg", "answer_logprob"} <= report["rewards"].keys()
    assert "| key_entropy " in (tmp_path / "out/validity.md").read_text()
    assert "| key_entropy " in output
    xml.etree.ElementTree.parse(tmp_path / "out/validity.svg")


def test_an_interrupted_check_resumes_and_refuses_other_settings(random_llama, tmp_path):
    items = [ITEM | {"question": f"Where was Talpa born? {n}"} for n in range(20)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    words = ["--input", tmp_path / "in.jsonl", "--model", random_llama, "--rewards", "key_entropy", "--output"]
    call(main, *words, tmp_path / "whole")
    records = (tmp_path / "whole/scores/records.jsonl").read_text()
    stopped = tmp_path / "stopped/scores"
    stopped.mkdir(parents=True)
    (stopped / "plan.json").write_text((tmp_path / "whole/scores/plan.json").read_text())
    lines = records.splitlines(keepends=True)
    (stopped / "part-0.jsonl").write_text("".join(lines[:8]) + lines[8][:20])  # the process was killed while writing
    assert "scores: resuming after 8 finished records" in call(main, *words, tmp_path / "stopped")
    values = [json.loads(line) | {"seconds": None} for line in (stopped / "records.jsonl").read_text().splitlines()]
    assert values == [json.loads(line) | {"seconds": None} for line in lines]
    output = call(main, *words, tmp_path / "stopped", "--seed", "1", ok=False)
    assert "`settings.seed` was 0, is 1" in output and f"Use another `--output`, or delete {stopped}." in output


def test_rewards_that_make_no_answer_are_compared_with_answers_too(random_llama, tmp_path):
    (tmp_path / "in.jsonl").write_text(
        "".join(json.dumps(ITEM | {"question": f"Where was Talpa born? {n}"}) + "\n" for n in range(3))
    )
    words = ["--input", tmp_path / "in.jsonl", "--model", random_llama, "--output", tmp_path / "out"]
    call(main, *words, "--rewards", "reciprocal_rank")
    report = json.loads((tmp_path / "out/validity.json").read_text())
    assert list(report["rewards"]) == ["reciprocal_rank"] and report["abstaining"] is not None
    assert set(report["answers_right"]) == {"gold", "without"}


def test_rewards_that_lack_answers_are_refused_or_skipped(random_llama, tmp_path):
    bare = {name: value for name, value in ITEM.items() if name != "answers"}
    one_kind = bare | {"passages": ITEM["passages"][:1]}
    (tmp_path / "in.jsonl").write_text(json.dumps(bare) + "\n" + json.dumps(one_kind) + "\n")
    words = ["--input", tmp_path / "in.jsonl", "--model", random_llama, "--output", tmp_path / "out"]
    output = call(main, *words, "--rewards", "answer_logprob", ok=False)
    assert "`--rewards answer_logprob` needs `answers`; 1 of 1 questions have none" in output
    output = call(main, *words)
    assert "skipped 1 of 2 items" in output and "skipped answer_logprob: 1 of 1 questions" in output
    assert "Answers that abstain: " in output and "Answers right" not in output


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--output", "o"], "give either `--config` (turns and a collection) or `--input` (items)."),
        (["--output", "o", "--input", "x.jsonl"], "`--input` needs `--model`, the generator."),
        (
            ["--input", "x.jsonl", "--model", "m"],
            "`--output` is not set; name a folder for validity.json, .md and .svg.",
        ),
        (["--input", "x.jsonl", "--model", "m", "--run", "r"], "`--run` needs `--config`, the settings of that run."),
        (
            ["--config", "c.yaml", "--run", "r", "--rewards", "ppl"],
            "`--run` shows the rewards in the records of the run; remove `--rewards` and `--entailment`.",
        ),
        (["--input", "x.jsonl", "--rewards", "ppll"], "`--rewards ppll`: did you mean `ppl`?"),
        (
            ["--input", "x.jsonl", "--model", "m", "--output", "o", "--run.seed", "1"],
            "`--run.seed` cannot be used with `--input`; use `--config` to override settings.",
        ),
        (["--limit", "0"], "`--limit` must be a whole number >= 1, or null, got 0."),
    ],
)
def test_bad_flags(words, expected):
    with pytest.raises(InputError) as error:
        main(words)
    assert str(error.value) == expected


def test_a_missing_file_is_named():
    words = ["--output", "o", "--input", "nowhere.jsonl", "--model", "m"]
    assert "error: --input nowhere.jsonl: cannot be read" in call(main, *words, ok=False)
