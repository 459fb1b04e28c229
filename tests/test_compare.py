"""`python -m train.compare`: several rewards side by side."""

import json
import sys

import pytest

from tests.conftest import QUICK, ROOT, call, finish, lines
from train.compare import main
from train.report.__main__ import main as report


@pytest.mark.slow
def test_several_rewards_share_candidates_and_rankings(tmp_path):
    rewards = ["udcg", "delta_seper_hard", "weighted"]
    words = [sys.executable, "-m", "train.compare", "--rewards", *rewards, "--config", "configs/quickstart.yaml"]
    options = ["--run.dir", str(tmp_path / "run"), *QUICK, "--scoring.entailment=exact", "--scoring.samples=3"]
    options += ["--scoring.sample_tokens=8", "--scoring.weights", "{key_entropy: 1.0, answer_logprob: 0.5}"]
    output = finish([*words, *options])
    shared = lines(tmp_path / "run/round-1/candidates")
    for reward in rewards:
        assert lines(tmp_path / f"run/rewards/{reward}/round-1/candidates") == shared
        pairs = lines(tmp_path / f"run/rewards/{reward}/round-1/pairs")
        assert pairs and all(pair["reward"] == reward and pair["gap"] > 0 for pair in pairs)
    table = (tmp_path / "run/rewards/table.md").read_text()
    assert table in output and all(reward in table for reward in rewards)
    call(report, tmp_path / "run/rewards/udcg")  # each is a whole run, with its data


def test_missing_labels_are_reported_before_any_stage_runs(tmp_path):
    turns = [{"id": f"c_{n}", "history": [], "question": "Who?"} for n in range(3)]
    (tmp_path / "turns.jsonl").write_text("".join(json.dumps(turn) + "\n" for turn in turns))
    (tmp_path / "test.jsonl").write_text(json.dumps(turns[0] | {"answers": ["Ann"]}) + "\n")
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"id": "d", "text": "Ann."}) + "\n")
    words = ["--config", ROOT / "configs/quickstart.yaml", "--data.format", "records"]
    words += ["--data.train", tmp_path / "turns.jsonl", "--data.corpus", tmp_path / "corpus.jsonl"]
    words += ["--data.test", tmp_path / "test.jsonl", "--run.dir", tmp_path / "run"]
    output = call(main, *words, "--rewards", "key_entropy", "udcg", ok=False)
    assert "the reward `udcg` needs `relevant` in every turn; 3 of 3" in output
    assert not (tmp_path / "run/round-1").exists()
