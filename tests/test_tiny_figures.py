"""The shipped tiny model: small, safetensors, described, and able to read names it has never seen."""

import json

import pytest

from tests.conftest import ROOT
from train.tiny_figures import card, figures

MODEL = ROOT / "configs/tiny-model"


def test_it_is_small_and_described():
    assert sum(path.stat().st_size for path in MODEL.iterdir()) < 8e6
    assert {path.name for path in MODEL.glob("*.safetensors")} == {"model.safetensors"}
    training = json.loads((MODEL / "training.json").read_text())
    text = (MODEL / "README.md").read_text()
    assert training["commit"] in text and f"--seed {training['seed']}" in text and "poor on purpose" in text


@pytest.mark.slow
def test_it_reads_and_key_entropy_tells_gold_lists(tmp_path):
    from train.tiny_world import make_quickstart_data

    make_quickstart_data(tmp_path)
    made = figures(str(MODEL), tmp_path, limit=100)
    assert made["answers right, gold passage among 3"] >= 0.7
    assert made["answers right, no passage"] <= 0.1
    assert made["KeyEntropy higher with the gold passage"] > 0.7
    assert made["MRR@10 of the greedy query"] < made["MRR@10 of the reference query"] - 0.1
    assert "0.5" in card(json.loads((MODEL / "training.json").read_text()), {"share": 0.5})
