"""What is trained: adapters that cannot work are refused by name, before the run or when they are read."""

import sys

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from core.cli import read_settings
from core.errors import InputError
from core.language_model import load_language_model
from tests.conftest import ROOT, finish
from train.policy import check_lora, new_policy

QUICKSTART = ["--config", str(ROOT / "configs/quickstart.yaml")]


@pytest.fixture
def adapter(random_llama, tmp_path):
    model = load_language_model(str(random_llama)).model
    get_peft_model(model, LoraConfig(r=4, target_modules="all-linear")).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


@pytest.mark.parametrize(
    "flags, expected",
    [
        (["--lora.target_modules", "[q_prj]"], "q_prj"),
        (["--lora.r", "0"], "`r`"),
        (["--lora.rank", "4"], "has no such setting"),
        (["--lora.layers_to_transform", "[99]"], "`lora`"),
    ],
)
def test_lora_that_does_not_fit_the_model(flags, expected):
    with pytest.raises(InputError, match=expected):
        check_lora(read_settings("", [*QUICKSTART, *flags]))


def test_the_quickstart_lora_fits():
    check_lora(read_settings("", QUICKSTART))


def test_a_given_adapter_goes_on_training(random_llama, adapter):
    flags = ["--rewriter.model", str(random_llama), "--rewriter.adapter", str(adapter)]
    model, _ = new_policy(read_settings("", [*QUICKSTART, *flags]))
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert trained and all("lora_" in name for name in trained)


def damage_cut(folder):
    file = folder / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:200])


def damage_shapes(folder):
    file = folder / "adapter_model.safetensors"
    save_file({name: torch.zeros(3, 3) for name in load_file(file)}, file)


def damage_config(folder):
    (folder / "adapter_config.json").write_text("{")


@pytest.mark.parametrize("damage", [damage_cut, damage_shapes, damage_config])
def test_a_damaged_adapter_is_named(random_llama, adapter, damage):
    damage(adapter)
    with pytest.raises(InputError, match="adapter"):
        load_language_model(str(random_llama), str(adapter))


def test_redo_from_is_for_the_whole_run(tmp_path):
    words = [sys.executable, "-m", "scoring.pairs", *QUICKSTART, "--run.dir", str(tmp_path / "run")]
    assert "train/dpo.py" in finish([*words, "--run.redo_from", "pairs"], ok=False)
