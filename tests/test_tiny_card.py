"""The included tiny model: small, in safetensors, documented, and able to read unseen names."""

import json

import pytest

from tests.conftest import ROOT
from train.tiny.model_card import card, measure
from train.tiny.world import make_quickstart_data

MODEL = ROOT / "configs/tiny-model"


def test_it_is_small_and_described():
    assert sum(path.stat().st_size for path in MODEL.iterdir()) < 8e6
    assert {path.name for path in MODEL.glob("*.safetensors")} == {"model.safetensors"}
    training = json.loads((MODEL / "training.json").read_text())
    text = (MODEL / "README.md").read_text()
    assert training["commit"] in text and f"--seed {training['seed']}" in text and "poor on purpose" in text


def test_the_card_has_the_figures():
    training = {
        "parameters": 1_300_000, "tokens": 2_000_000, "seed": 0, "steps": 10, "processes": 2, "minutes": 1.0,
        "machine": "2 CPU cores", "commit": "abc",
    }  # fmt: skip
    text = card(training, {"turns": 7, "answers right": 0.5})
    assert "| answers right | 0.500 |" in text and "| turns | 7 |" in text
    assert "1.30M parameters" in text and "30% right, 45% raw" in text


@pytest.mark.slow
def test_it_reads_and_key_entropy_prefers_gold_lists(tmp_path):
    make_quickstart_data(tmp_path)
    figures = measure(str(MODEL), tmp_path, limit=100)
    assert figures["answers right, gold passage among 3"] >= 0.7
    assert figures["answers right, no passage"] <= 0.1
    assert figures["KeyEntropy higher with the gold passage"] > 0.7
    assert figures["MRR@10 of the greedy query"] < figures["MRR@10 of the reference query"] - 0.1
