"""The whole run as a user starts it: every stage, the adapters, and a kill."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import QUICK, ROOT, finish, lines
from train.pipeline import stage_names

pytestmark = pytest.mark.slow
MODEL = ROOT / "configs/tiny-model"
LAUNCH = [sys.executable, "-m", "accelerate.commands.launch"]


STAGES = stage_names(2)


def command(run: Path, *more: str) -> list[str]:
    options = [*QUICK, "--rewriter.batch_tokens", "4096"]
    return ["train/dpo.py", "--config", "configs/quickstart.yaml", "--run.dir", str(run), *options, *more]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run = tmp_path_factory.mktemp("run") / "whole"
    return run, finish([*LAUNCH, *command(run)])


def test_every_stage_is_complete_and_logs_one_summary(whole):
    run, output = whole
    for stage in STAGES:
        manifest = json.loads((run / stage / "manifest.json").read_text())
        assert {"settings", "inputs", "counts", "seconds", "versions"} <= manifest.keys()
        assert sum(line.startswith(f"{stage}: ") and "->" in line for line in output.splitlines()) == 1
    assert "round-1/dpo: reward margin 0.0000 at step 0" in output
    assert "evaluated 24 turns, 24 of them" in output and "peak memory" in output


def test_the_second_round_is_sampled_anew_and_dpo_learns_from_both(whole):
    run, _ = whole
    assert lines(run / "round-2/candidates") != lines(run / "round-1/candidates")
    first, second, dpo = (
        json.loads((run / f"{name}/manifest.json").read_text())
        for name in ("round-1/pairs", "round-2/pairs", "round-2/dpo")
    )
    assert dpo["counts"]["total"] == first["counts"]["total"] + second["counts"]["total"]


def test_a_redo_that_fails_keeps_the_stages_that_it_set_aside(whole, tmp_path):
    run = shutil.copytree(whole[0], tmp_path / "run")
    words = ["--run.redo_from", "round-1/scores", "--generator.model", "nowhere"]
    assert "`generator.model`: nowhere cannot be read" in finish([sys.executable, *command(run, *words)], ok=False)
    words = ["--run.redo_from", "round-1/candidates", "--rewriter.max_new_tokens", "99999"]
    output = finish([sys.executable, *command(run, *words)], ok=False)
    assert "`rewriter.max_new_tokens` must be below the context" in output
    for stage in STAGES:
        assert (run / ".before" / stage / "manifest.json").exists()


def test_a_redo_makes_the_stage_and_all_after_it_again(whole, tmp_path):
    run = shutil.copytree(whole[0], tmp_path / "run")
    untouched = (run / "round-1/rankings/manifest.json").read_text()
    words = ["--run.redo_from", "round-1/scores", "--scoring.reward", "reciprocal_rank"]
    output = finish([sys.executable, *command(run, *words)])
    assert (run / "round-1/rankings/manifest.json").read_text() == untouched
    assert output.count("complete, nothing to do") == 2 and not (run / ".before").exists()
    for number in (1, 2):
        assert {pair["reward"] for pair in lines(run / f"round-{number}/pairs")} == {"reciprocal_rank"}
    hashes = [json.loads((folder / "round-2/dpo/manifest.json").read_text())["inputs"] for folder in (run, whole[0])]
    assert all(hashes[0][stage] != hashes[1][stage] for stage in ("round-1/pairs", "round-2/pairs"))


def test_the_metrics_file(whole):
    metrics = json.loads((whole[0] / "evaluation/metrics.json").read_text())
    assert metrics["turns"] == {"evaluated": 24, "total": 24, "answered": 24}
    assert list(metrics["systems"]) == ["original", "history", "base", "sft", "dpo-1", "dpo", "reference"]
    measures = {"MRR@10", "MRR", "MAP", "nDCG@3", "R@10", "R@100", "Success@1"}
    measures |= {"EM", "F1", "contains", "key_entropy", "statements"}
    assert all(set(values) == measures for values in metrics["systems"].values())
    assert metrics["systems"]["reference"]["MRR@10"] > metrics["systems"]["base"]["MRR@10"]
    assert {"a", "b", "metric", "difference", "low", "high", "p"} == set(metrics["comparisons"][0])
    runs = {path.stem for path in (whole[0] / "evaluation").glob("*.run")}
    assert runs == set(metrics["systems"])


def test_pairs_are_a_trl_data_set(whole):
    from datasets import load_dataset

    rows = load_dataset("json", data_files=str(whole[0] / "round-1/pairs/records.jsonl"), split="train")
    assert {"id", "prompt", "chosen", "rejected", "score_chosen", "score_rejected", "gap"} <= set(rows.column_names)
    for row in rows:
        assert row["gap"] == row["score_chosen"] - row["score_rejected"] > 0
        assert row["chosen"][0]["role"] == row["rejected"][0]["role"] == "assistant"


def test_the_adapter_loaded_by_peft_gives_the_same_rewrites(whole):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from core.language_model import LanguageModel, load_tokenizer
    from core.settings import RewriterSettings
    from rewriter.conversations import read_turns
    from rewriter.prompts import RewritePrompt
    from rewriter.sampling import greedy_rewrites

    run, _ = whole
    base = AutoModelForCausalLM.from_pretrained(MODEL)
    lm = LanguageModel("x", PeftModel.from_pretrained(base, run / "adapter").eval(), load_tokenizer(str(MODEL)))
    queries = {record["id"]: record["systems"]["dpo"]["query"] for record in lines(run / "evaluation")}
    turns = read_turns(run / "data/test.jsonl")[:24]
    assert greedy_rewrites(lm, turns, RewriterSettings(max_new_tokens=24), RewritePrompt()) == [
        queries[turn.id] for turn in turns
    ]


def test_the_same_command_again_changes_nothing(whole):
    run, _ = whole
    before = (run / "evaluation/metrics.json").read_text()
    output = finish([sys.executable, *command(run)])
    assert output.count("complete, nothing to do") == len(STAGES)
    assert (run / "evaluation/metrics.json").read_text() == before


def test_other_settings_do_not_mix(whole):
    output = finish([sys.executable, *command(whole[0], "--scoring.alpha", "0.2")], ok=False)
    assert "`settings.alpha` was 0.05, is 0.2" in output


def test_options_of_another_reward_change_nothing(whole):
    output = finish([sys.executable, *command(whole[0], "--scoring.samples", "3", "--run.until", "round-1/scores")])
    assert output.count("complete, nothing to do") == 3


def test_a_killed_run_resumes_and_ends_with_the_same_figures(whole, tmp_path):
    """SIGKILL during candidates, scores and dpo; the result equals that of an uninterrupted run."""
    run = tmp_path / "killed"
    for watched in (
        "round-1/candidates/part-0.jsonl",
        "round-1/scores/part-0.jsonl",
        "round-2/dpo/checkpoints/checkpoint-2/trainer_state.json",
    ):
        process = subprocess.Popen(
            [sys.executable, *command(run)], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        deadline = time.monotonic() + 300
        while not (run / watched).exists() or not (run / watched).stat().st_size:
            assert process.poll() is None and time.monotonic() < deadline, f"{watched} never came"
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    finish([sys.executable, *command(run)])
    for stage in ("candidates", "rankings", "scores", "pairs"):
        for number in (1, 2):
            assert lines(run / f"round-{number}" / stage) == lines(whole[0] / f"round-{number}" / stage)
    assert (run / "evaluation/table.md").read_text() == (whole[0] / "evaluation/table.md").read_text()
