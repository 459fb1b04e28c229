"""Language models: fingerprints, and several adapters on one base model."""

import json
import shutil

import pytest
import torch

from core.errors import InputError
from core.language_model import load_language_model, read_config
from core.model_spec import ModelSpec, generator_spec, load_with_adapters
from core.settings import GeneratorSettings, RewriterSettings


@torch.no_grad()
def logits(lm):
    return lm.model(torch.arange(5, 25)[None]).logits.float()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_using_switches_between_adapters_and_the_base(random_llama, adapters, dtype):
    spec = ModelSpec(str(random_llama), dtype=dtype)
    together = load_with_adapters(spec, adapters)
    alone = {name: logits(ModelSpec(spec.name, folder, dtype).load()) for name, folder in adapters.items()}
    alone[None] = logits(spec.load())
    for name in ("first", None, "second", "first", "second", None):
        with together.using(name) as lm:
            values = logits(lm)
        # In float32, a single adapter is merged into the weights.
        assert torch.allclose(values, alone[name], atol=1e-4 if dtype == "float32" else 0.0)
    for a, b in (("first", "second"), ("first", None), ("second", None)):
        assert (alone[a] - alone[b]).abs().max() > 0.1


def test_using_the_base_of_a_model_without_adapters(random_llama):
    lm = load_with_adapters(ModelSpec(str(random_llama)), {})
    with lm.using(None) as base:
        assert torch.equal(logits(base), logits(ModelSpec(str(random_llama)).load()))


def test_an_adapter_that_cannot_be_loaded_is_named(random_llama, adapters, tmp_path):
    for folders in ({"missing": str(tmp_path)}, adapters | {"missing": str(tmp_path)}):
        with pytest.raises(InputError, match=f"the adapter {tmp_path} of `.*` cannot be loaded"):
            load_with_adapters(ModelSpec(str(random_llama)), folders)


@pytest.mark.parametrize("change", [3, {"hidden_size": "x"}, {"rope_parameters": 3}])
def test_a_damaged_configuration_is_named(random_llama, tmp_path, change):
    folder = shutil.copytree(random_llama, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change if isinstance(change, dict) else change))
    with pytest.raises(InputError, match=f"`generator.model`: {folder} cannot be read: "):
        read_config("generator.model", str(folder))
    with pytest.raises(InputError, match=f"the model `{folder}` cannot be loaded: "):
        load_language_model(str(folder))


def test_the_fingerprint_is_of_weights_and_adapter(random_llama, adapters):
    base, first, second = (ModelSpec(str(random_llama), adapters.get(name)) for name in ("none", "first", "second"))
    assert len({base.fingerprint, first.fingerprint, second.fingerprint}) == 3
    assert first.fingerprint.startswith(f"{base.fingerprint}+")
    assert ModelSpec("owner/name").fingerprint == "owner/name"


def test_the_generator_is_the_rewriter_where_no_model_is_named():
    rewriter = RewriterSettings(model="m", adapter="a", dtype="bfloat16")
    assert generator_spec(GeneratorSettings(), rewriter) == ModelSpec("m", "a", "float32")
    assert generator_spec(GeneratorSettings(model="g"), rewriter) == ModelSpec("g", None, "float32")
    with pytest.raises(InputError, match="`rewriter.model` is not set"):
        generator_spec(GeneratorSettings(), RewriterSettings())
