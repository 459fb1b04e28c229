"""Checks of PEFT adapters, before a base model's weights are read."""

from pathlib import Path

import torch
from peft import PeftConfig, get_peft_model, get_peft_model_state_dict
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

from core.errors import InputError, first_line
from core.gguf import model_folder

WEIGHTS = "adapter_model.safetensors"
READING_ERRORS = (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError)


def check_adapter(model: str, adapter: str) -> None:
    """Make sure that an adapter in a folder has safetensors, and LoRA weights of the base model's layers and sizes.

    Args:
        model: folder, Hub id or `.gguf` file of the base model.
        adapter: folder of the adapter; one on the Hub is not checked.

    Raises:
        InputError: it cannot be read or belongs to another model; names both and the first weight that differs.
    """
    folder = Path(adapter)
    if not folder.is_dir():
        return
    if not (folder / WEIGHTS).is_file():
        raise InputError(f"the adapter {adapter} has no {WEIGHTS}; weights are read as safetensors alone.")
    try:
        with safe_open(folder / WEIGHTS, "pt") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}
        config = AutoConfig.from_pretrained(model_folder(model), trust_remote_code=False)
        with torch.device("meta"):
            lora = get_peft_model(AutoModelForCausalLM.from_config(config), PeftConfig.from_pretrained(adapter))
        expected = get_peft_model_state_dict(lora, save_embedding_layers=False)
    except READING_ERRORS as error:
        raise InputError(f"the adapter {adapter} of `{model}` cannot be read: {first_line(error)}") from error
    for name in sorted(name for name in {*shapes, *expected} if ".lora_" in name):
        found, needed = shapes.get(name), list(expected[name].shape) if name in expected else None
        if found != needed:
            raise InputError(
                f"the adapter {adapter} is of another base model than `{model}`: the shape of `{name}` is "
                f"{found or 'none'} in the adapter and {needed or 'none'} in the model. Name the adapter's base model."
            )
