"""The policy: unusable adapters raise an error that names them, before the run or when they are loaded."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from core.errors import InputError
from core.language_model import load_language_model
from core.model_spec import ModelSpec, rewriter_spec
from tests.conftest import ROOT, settings_of
from train.policy import check_lora, new_policy

QUICKSTART = ["--config", ROOT / "configs/quickstart.yaml"]


def check(*flags):
    settings = settings_of(*QUICKSTART, *flags)
    check_lora(rewriter_spec(settings.rewriter), settings.lora)


@pytest.fixture
def adapter(adapters, tmp_path):
    return Path(shutil.copytree(adapters["first"], tmp_path / "adapter"))


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
        check(*flags)


def test_the_quickstart_lora_fits():
    check()


def test_an_adapter_continues_to_train(random_llama, adapter):
    model, _ = new_policy(ModelSpec(str(random_llama), str(adapter)), {"r": 99}, seed=1)
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert trained and all("lora_" in name for name in trained)
    assert model.peft_config["default"].r == 4  # from the adapter, not from the settings


def test_a_new_adapter_depends_on_the_seed_alone(random_llama):
    first, again, other = (
        [weight for name, weight in new_policy(ModelSpec(str(random_llama)), {}, seed)[0].named_parameters()
         if "lora_A" in name]
        for seed in (1, 1, 2)
    )  # fmt: skip
    assert first and all(map(torch.equal, first, again)) and not any(map(torch.equal, first, other))


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
