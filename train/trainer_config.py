"""From the `lora`, `sft` and `dpo` settings to PEFT's and TRL's configuration objects."""

import inspect
from pathlib import Path
from typing import Any, TypeVar

import torch
from peft import LoraConfig
from trl import DPOConfig, SFTConfig

from core.errors import InputError, nearest

T = TypeVar("T")
# Where TRL's own default would surprise: activation checkpointing that only slows small models, truncation, batches
# that are half padding.
DEFAULTS = {
    "gradient_checkpointing": False,
    "max_length": None,  # nothing is truncated
    "train_sampling_strategy": "group_by_length",
    "lr_scheduler_type": "cosine",
    "warmup_steps": 0.1,
    "logging_steps": 0.02,  # share of the steps: the curves of the report have 50 points
    "save_strategy": "steps",
    "save_steps": 0.05,  # share of the steps
    "save_total_limit": 1,
    "report_to": "none",
    "disable_tqdm": True,  # its steps are shown by us
}
LORA = {"r": 16, "lora_alpha": 32, "target_modules": "all-linear", "lora_dropout": 0.0, "task_type": "CAUSAL_LM"}


def build_config(section: str, options: dict[str, Any], kind: type[T], defaults: dict[str, Any]) -> T:
    """A configuration object of PEFT or TRL from the settings of a section, over our defaults.

    Raises:
        InputError: the library refuses a key or value; for a key, names the nearest right one.
    """
    owner = f"{'PEFT' if kind is LoraConfig else 'TRL'}'s {kind.__name__}"
    known = list(inspect.signature(kind).parameters)
    for key in options:
        if key not in known:
            raise InputError(f"`{section}.{key}`: {owner} has no such setting; {nearest(key, known)}")
    try:
        config = kind(**defaults | options)
        for name in ("r", "learning_rate", "num_train_epochs", "per_device_train_batch_size"):
            if hasattr(config, name) and not getattr(config, name) > 0:
                raise ValueError(f"`{name}` must be above 0, got {getattr(config, name)}")
        if not isinstance(getattr(config, "per_device_train_batch_size", 1), int):
            raise ValueError(f"batch size must be a whole number, got {config.per_device_train_batch_size}")
        if getattr(config, "inference_mode", False):
            raise ValueError("`inference_mode` must be false: its weights are to be trained")
    except (TypeError, ValueError, KeyError) as error:
        raise InputError(f"`{section}`: {owner} refuses it: {error}") from error
    return config


def lora_config(lora: dict[str, Any]) -> LoraConfig:
    """PEFT's `LoraConfig` from the `lora` settings; raises an `InputError` where PEFT refuses them."""
    return build_config("lora", lora, LoraConfig, LORA)


def trainer_config(
    section: str, options: dict[str, Any], dtype: str, seed: int, folder: Path
) -> SFTConfig | DPOConfig:
    """TRL's `SFTConfig` or `DPOConfig` from the settings of a section.

    Args:
        section: `sft` or `dpo`.
        options: its settings.
        dtype: of the rewriter's weights.
        seed: of weights, data order and dropout.
        folder: where checkpoints go.

    Raises:
        InputError: TRL refuses a key or value.
    """
    on_gpu = torch.cuda.is_available()
    own = {"output_dir": str(folder), "seed": seed, "data_seed": seed, "bf16": dtype == "bfloat16"}
    own |= {"use_cpu": not on_gpu, "dataloader_pin_memory": on_gpu}  # without `use_cpu`, Accelerate takes one process
    return build_config(section, options, {"sft": SFTConfig, "dpo": DPOConfig}[section], DEFAULTS | own)
