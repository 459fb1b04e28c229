"""Models in 4 bits (bitsandbytes, on a CPU too), QLoRA, and `device_map`."""

import importlib.util

import pytest
import torch

from core.artifacts import read_json_lines
from core.errors import InputError
from core.language_model import load_language_model
from core.model_spec import ModelSpec, generator_spec, load_with_adapters
from core.records import GenerationInput
from core.settings import GeneratorSettings, RewriterSettings
from scoring.generator import Generator
from scoring.utility import main
from tests.conftest import ROOT, call, write_lines
from tests.test_training import TRAINING, run_with_pairs
from tests.test_utility import ITEM
from train.dpo_stage import train_dpo
from train.sft_stage import train_sft

TINY = str(ROOT / "configs/tiny-model")
installed = importlib.util.find_spec("bitsandbytes") is not None
needs_4bit = pytest.mark.skipif(not installed, reason="bitsandbytes is not installed (the extra `4bit`)")
QUESTION = GenerationInput.of((), "Who founded Port Verna?", ["Port Verna was founded by Ann Lee."])


def linear_layers(model) -> set[str]:
    return {type(module).__name__ for module in model.modules() if isinstance(module, torch.nn.Linear)}


@pytest.mark.skipif(installed, reason="bitsandbytes is installed")
def test_without_bitsandbytes_the_command_that_installs_it_is_named():
    with pytest.raises(InputError, match=r"`quantization: 4bit` needs bitsandbytes; .*pip install -e '.\[4bit\]'"):
        load_language_model(TINY, quantization="4bit")


def test_quantized_weights_have_another_fingerprint():
    plain, quantized = ModelSpec(TINY), ModelSpec(TINY, quantization="4bit")
    assert quantized.fingerprint == f"{plain.fingerprint}+4bit"
    assert ModelSpec(TINY, device_map="auto").fingerprint == plain.fingerprint


def test_the_generator_has_its_own_quantization_and_device_map():
    rewriter = RewriterSettings(model="m", adapter="a", quantization="4bit")
    options = GeneratorSettings(dtype="bfloat16", device_map="auto")
    assert generator_spec(options, rewriter) == ModelSpec("m", "a", "bfloat16", None, "auto")


def test_device_map_gives_the_same_answers(monkeypatch):
    pair = [Generator(ModelSpec(TINY, device_map=each).load(), 8, 4096) for each in (None, "auto")]
    first, second = (generator.answers([QUESTION]) for generator in pair)
    assert first == second and first[0].answer
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="`device_map: auto` spreads a model over all GPUs for one process"):
        ModelSpec(TINY, device_map="auto").load()


@needs_4bit
def test_a_quantized_generator_answers_and_scores():
    lm = ModelSpec(TINY, quantization="4bit").load()
    assert "Linear4bit" in linear_layers(lm.model)
    (answer,) = Generator(lm, 8, 4096).answers([QUESTION])
    assert answer.answer and len(answer.stats.h0) == len(answer.stats.hd) > 0


@needs_4bit
def test_items_are_scored_with_a_quantized_generator(tmp_path):
    item = write_lines(tmp_path / "items.jsonl", [ITEM])
    token_records = []
    for flags in ([], ["--quantization", "4bit"]):
        call(main, "--model", TINY, "--input", item, "--output", tmp_path / "out.jsonl", *flags)
        (scored,) = read_json_lines(tmp_path / "out.jsonl")
        token_records.append(scored[1]["models_info"][TINY])
    assert token_records[0] != token_records[1]


@needs_4bit
def test_qlora_trains_an_adapter_that_is_not_merged(tmp_path):
    options = TRAINING | {"max_steps": 3, "learning_rate": 3e-3}
    run, pairs = run_with_pairs(tmp_path, TINY, sft=options, dpo=options)
    run.settings.rewriter.quantization = "4bit"
    stage = train_sft(run, "round-1/sft", pairs)
    assert stage.manifest["counts"]["steps"] == 3 and stage.manifest["inputs"]["model"].endswith("+4bit")
    dpo = train_dpo(run, "round-1/dpo", {pairs.name: pairs}, stage)
    assert dpo.manifest["counts"]["margin"] != 0
    trained = run.trained("round-1/sft")
    assert trained.quantization == "4bit"
    lm = trained.load()
    assert lm.model.peft_config and "Linear4bit" in linear_layers(lm.model)  # a merged model has no adapter
    both = load_with_adapters(run.base, {"sft": trained.adapter})
    with both.using("sft"), torch.no_grad():
        adapted = both.model(torch.tensor([[5, 6, 7]])).logits
    with both.using(None), torch.no_grad():
        bare = both.model(torch.tensor([[5, 6, 7]])).logits
    assert not torch.equal(adapted, bare)
