"""The whole run as a user starts it: every stage, the adapters, a kill in the middle."""

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

pytestmark = pytest.mark.slow
MODEL = ROOT / "configs/tiny-model"
LAUNCH = [sys.executable, "-m", "accelerate.commands.launch"]


def command(run: Path, *more: str) -> list[str]:
    options = [*QUICK, "--rewriter.batch_tokens", "4096"]
    return ["train/dpo.py", "--config", "configs/quickstart.yaml", "--run.dir", str(run), *options, *more]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run = tmp_path_factory.mktemp("run") / "whole"
    return run, finish([*LAUNCH, *command(run)])


def test_every_stage_is_there_and_says_one_line(whole):
    run, said = whole
    for stage in ("candidates", "rankings", "scores", "pairs", "sft", "dpo", "evaluation"):
        manifest = json.loads((run / stage / "manifest.json").read_text())
        assert {"settings", "inputs", "counts", "seconds", "versions"} <= manifest.keys()
        rounds = 2 if (run / "on_policy" / stage).exists() else 1
        assert sum(line.startswith(f"{stage}: ") and "->" in line for line in said.splitlines()) == rounds
    assert "dpo: reward margin 0.0000 at step 0" in said
    assert "evaluated 24 of 24 turns" in said and "peak memory" in said


def test_dpo_learns_from_a_second_round(whole):
    """`pairs.on_policy`: DPO learns from pairs that the SFT rewriter's own samples make."""
    run, said = whole
    assert "second round" in said and lines(run / "on_policy/candidates") != lines(run / "candidates")
    first, second, dpo = (
        json.loads((run / f"{name}/manifest.json").read_text()) for name in ("pairs", "on_policy/pairs", "dpo")
    )
    assert dpo["counts"]["total"] == first["counts"]["kept"] + second["counts"]["kept"]


def test_a_redo_that_fails_leaves_the_stages(whole):
    run, _ = whole
    words = ["--run.redo_from", "scores", "--generator.model", "nowhere"]
    assert "`generator.model`: nowhere cannot be read" in finish([sys.executable, *command(run, *words)], ok=False)
    words = ["--run.redo_from", "candidates", "--rewriter.max_new_tokens", "99999"]
    said = finish([sys.executable, *command(run, *words)], ok=False)
    assert "`rewriter.max_new_tokens` must be below the context" in said
    for stage in ("scores", "pairs", "sft", "dpo", "evaluation"):
        assert (run / ".before" / stage / "manifest.json").exists()
        (run / ".before" / stage).rename(run / stage)
    for stage in ("candidates", "rankings", "on_policy"):
        shutil.rmtree(run / stage, ignore_errors=True)
        (run / ".before" / stage).rename(run / stage)


def test_the_metrics_file(whole):
    made = json.loads((whole[0] / "evaluation/metrics.json").read_text())
    assert made["turns"] == {"evaluated": 24, "total": 24, "answered": 24}
    assert list(made["systems"]) == ["original", "history", "base", "sft", "dpo", "reference"]
    wanted = {"MRR@10", "MRR", "MAP", "nDCG@3", "R@10", "R@100", "Success@1"}
    wanted |= {"EM", "F1", "contains", "key_entropy", "statements"}
    assert all(set(measures) == wanted for measures in made["systems"].values())
    assert made["systems"]["reference"]["MRR@10"] > made["systems"]["base"]["MRR@10"]
    assert {"a", "b", "metric", "difference", "low", "high", "p"} == set(made["comparisons"][0])
    runs = {path.stem for path in (whole[0] / "evaluation").glob("*.run")}
    assert runs == set(made["systems"])


def test_pairs_are_a_trl_data_set(whole):
    from datasets import load_dataset

    rows = load_dataset("json", data_files=str(whole[0] / "pairs/part-0.jsonl"), split="train")
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
    lm = LanguageModel("x", PeftModel.from_pretrained(base, run / "dpo/adapter").eval(), load_tokenizer(str(MODEL)))
    told = {record["id"]: record["systems"]["dpo"]["query"] for record in lines(run / "evaluation")}
    turns = read_turns(run / "data/test.jsonl", 24)
    assert greedy_rewrites(lm, turns, RewriterSettings(max_new_tokens=24), RewritePrompt()) == [
        told[turn.id] for turn in turns
    ]


def test_the_same_command_again_changes_nothing(whole):
    run, _ = whole
    before = (run / "evaluation/metrics.json").read_text()
    said = finish([sys.executable, *command(run)])
    assert said.count("complete, nothing to do") == 11
    assert (run / "evaluation/metrics.json").read_text() == before


def test_other_settings_do_not_mix(whole):
    said = finish([sys.executable, *command(whole[0], "--scoring.alpha", "0.2")], ok=False)
    assert "`settings.alpha` was 0.05, is 0.2" in said


def test_options_of_another_reward_change_nothing(whole):
    said = finish([sys.executable, *command(whole[0], "--scoring.samples", "3", "--run.until", "scores")])
    assert said.count("complete, nothing to do") == 3


def test_a_killed_run_goes_on_to_the_same_figures(whole, tmp_path):
    """SIGKILL while candidates, scores and dpo are at work; the run ends as one that was never killed."""
    run = tmp_path / "killed"
    for watched in (
        "candidates/part-0.jsonl",
        "scores/part-0.jsonl",
        "dpo/checkpoints/checkpoint-2/trainer_state.json",
    ):
        process = subprocess.Popen(
            [sys.executable, *command(run)], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        deadline = time.monotonic() + 200
        while not (run / watched).exists() or not (run / watched).stat().st_size:
            assert process.poll() is None and time.monotonic() < deadline, f"{watched} never came"
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    finish([sys.executable, *command(run)])
    for stage in ("candidates", "rankings", "scores", "pairs"):
        assert lines(run / stage) == lines(whole[0] / stage)
    assert (run / "evaluation/table.md").read_text() == (whole[0] / "evaluation/table.md").read_text()
