"""The policy: a base model with a trainable LoRA adapter."""

from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from core.errors import InputError
from core.language_model import read_config
from core.model_spec import ModelSpec
from train.trainer_config import LORA, build_config


def new_policy(model: ModelSpec, lora: dict[str, Any], seed: int) -> tuple[PeftModel, PreTrainedTokenizerBase]:
    """Load the rewriter with a trainable LoRA adapter, and its tokenizer.

    The adapter is that of `model`, or a new one with weights that `seed` determines.
    """
    torch.manual_seed(seed)
    lm = model.load(trainable=True)
    return (lm.model if model.adapter else add_lora(lm.model, model.name, lora)), lm.tokenizer


def add_lora(model: PreTrainedModel, name: str, lora: dict[str, Any]) -> PeftModel:
    """Add a new adapter to the model; raises an `InputError` if PEFT cannot."""
    config = build_config("lora", lora, LoraConfig, LORA)
    try:
        return get_peft_model(model, config)
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        raise InputError(f"`lora`: PEFT cannot add the adapter to {name}: {error}") from error


def check_lora(model: ModelSpec, lora: dict[str, Any]) -> None:
    """Check that the `lora` section fits the layers of the model. Loads no weights.

    Raises:
        InputError: the model cannot be read, or PEFT cannot add the adapter.
    """
    if not model.adapter:
        add_lora(meta_model(model.name, "rewriter.model"), model.name, lora)


def meta_model(name: str, key: str) -> PreTrainedModel:
    """Build a model without weights; raises an `InputError` that names the setting `key` if its configuration cannot
    be read."""
    config = read_config(key, name)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)
