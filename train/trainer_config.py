"""From the `lora`, `sft` and `dpo` settings to PEFT's and TRL's configuration objects."""

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from trl import DPOConfig, SFTConfig

from core.errors import InputError, nearest

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
    "save_steps": 50,
    "save_total_limit": 1,
    "report_to": "none",
    "disable_tqdm": True,  # its steps are shown by us
}
LORA = {"r": 16, "lora_alpha": 32, "target_modules": "all-linear", "lora_dropout": 0.0, "task_type": "CAUSAL_LM"}


def check_keys(section: str, options: dict[str, Any], known: list[str], owner: str) -> None:
    """Refuse a key that the library does not have.

    Raises:
        InputError: names the key and the nearest right one.
    """
    for key in options:
        if key not in known:
            raise InputError(f"`{section}.{key}`: {owner} has no such setting; {nearest(key, known)}")


def lora_config(lora: dict[str, Any]) -> LoraConfig:
    """PEFT's `LoraConfig` from the `lora` settings, over our defaults.

    Raises:
        InputError: a key or value is refused.
    """
    check_keys("lora", lora, list(inspect.signature(LoraConfig).parameters), "PEFT's LoraConfig")
    try:
        config = LoraConfig(**LORA | lora)
        if not config.r > 0:
            raise ValueError(f"`r` must be above 0, got {config.r}")
        if config.inference_mode:
            raise ValueError("`inference_mode` must be false: its weights are to be trained")
    except (TypeError, ValueError, KeyError) as error:
        raise InputError(f"`lora`: PEFT's LoraConfig refuses it: {error}") from error
    return config


def trainer_config(
    section: str, options: dict[str, Any], dtype: str, seed: int, folder: Path
) -> SFTConfig | DPOConfig:
    """TRL's `SFTConfig` or `DPOConfig` from the settings of a section, over our defaults.

    Args:
        section: `sft` or `dpo`.
        options: its settings.
        dtype: of the rewriter's weights.
        seed: of weights, data order and dropout.
        folder: where checkpoints go.

    Raises:
        InputError: a key or value is refused.
    """
    kind = {"sft": SFTConfig, "dpo": DPOConfig}[section]
    check_keys(section, options, [f.name for f in fields(kind)], f"TRL's {kind.__name__}")
    on_gpu = torch.cuda.is_available()
    own = {"output_dir": str(folder), "seed": seed, "data_seed": seed, "bf16": dtype == "bfloat16" and on_gpu}
    own |= {"use_cpu": not on_gpu, "dataloader_pin_memory": on_gpu}  # without `use_cpu`, Accelerate takes one process
    values = DEFAULTS | own | options
    try:
        config = kind(**values)
        if (
            not config.learning_rate > 0
            or not config.num_train_epochs > 0
            or not config.per_device_train_batch_size > 0
        ):
            raise ValueError("learning rate, epochs and batch size must be above 0")
        if not isinstance(config.per_device_train_batch_size, int):
            raise ValueError(f"batch size must be a whole number, got {config.per_device_train_batch_size}")
    except (TypeError, ValueError) as error:
        raise InputError(f"`{section}`: TRL's {kind.__name__} refuses it: {error}") from error
    return config
