"""Checks of PEFT adapters before the weights of the base model are loaded."""

from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from jinja2 import TemplateError
from peft import PeftConfig, get_peft_model, get_peft_model_state_dict
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForCausalLM

from core.errors import InputError, first_line
from core.gguf import model_folder

WEIGHTS = "adapter_model.safetensors"
LOADING_ERRORS = (  # of models and adapters with missing, damaged or unknown files
    OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, SafetensorError, TemplateError,
    StrictDataclassError, UserWarning, AssertionError,
)  # fmt: skip


def check_adapter(model: str, adapter: str) -> None:
    """Check that an adapter folder has safetensors and that its LoRA weights match the layers of the base model.

    Args:
        model: folder, Hub id or `.gguf` file of the base model.
        adapter: folder of the adapter; an adapter on the Hub is not checked.

    Raises:
        InputError: the adapter cannot be read or belongs to another model; the message names the first mismatch.
    """
    folder = Path(adapter)
    if not folder.is_dir():
        return
    if not (folder / WEIGHTS).is_file():
        raise InputError(f"the adapter {adapter} has no {WEIGHTS}; only safetensors weights are loaded.")
    try:
        with safe_open(folder / WEIGHTS, "pt") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}
        config = AutoConfig.from_pretrained(model_folder(model), trust_remote_code=False)
        with torch.device("meta"):
            lora = get_peft_model(AutoModelForCausalLM.from_config(config), PeftConfig.from_pretrained(adapter))
        expected = get_peft_model_state_dict(lora, save_embedding_layers=False)
    except LOADING_ERRORS as error:
        raise InputError(f"the adapter {adapter} of `{model}` cannot be read: {first_line(error)}") from error
    for name in sorted(name for name in {*shapes, *expected} if ".lora_" in name):
        shape, model_shape = shapes.get(name), list(expected[name].shape) if name in expected else None
        if shape != model_shape:
            raise InputError(
                f"the adapter {adapter} does not belong to `{model}`: the shape of `{name}` is {shape or 'none'} in "
                f"the adapter and {model_shape or 'none'} in the model. Use the base model of the adapter."
            )
