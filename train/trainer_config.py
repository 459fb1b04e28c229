"""Build PEFT's and TRL's configuration objects from the `lora`, `sft` and `dpo` settings."""

import inspect
from pathlib import Path
from typing import Any, TypeVar

import torch
from peft import LoraConfig
from trl import DPOConfig, SFTConfig

from core.errors import InputError, nearest
from core.settings import Settings

T = TypeVar("T")
# Replaces defaults of TRL that do not suit small models and long prompts: gradient checkpointing slows small models,
# `max_length` truncates prompts, and batches of mixed lengths are half padding.
DEFAULTS = {
    "gradient_checkpointing": False,
    "max_length": None,  # no truncation
    "train_sampling_strategy": "group_by_length",
    "lr_scheduler_type": "cosine",
    "warmup_steps": 0.1,
    "logging_steps": 0.02,  # share of the steps: 50 points for the report's curves
    "save_strategy": "steps",
    "save_steps": 0.05,  # share of the steps
    "save_total_limit": 1,
    "report_to": "none",
    "disable_tqdm": True,  # `StepProgress` shows the steps
}
LORA = {"r": 16, "lora_alpha": 32, "target_modules": "all-linear", "lora_dropout": 0.0, "task_type": "CAUSAL_LM"}


def build_config(section: str, options: dict[str, Any], kind: type[T], defaults: dict[str, Any]) -> T:
    """Build a configuration object of PEFT or TRL from defaults and the settings of a section.

    Raises:
        InputError: the library rejects a key or value; for a key, names the closest valid one.
    """
    owner = f"{'PEFT' if kind is LoraConfig else 'TRL'}'s {kind.__name__}"
    parameters = list(inspect.signature(kind).parameters)
    for key in options:
        if key not in parameters:
            raise InputError(f"`{section}.{key}`: {owner} has no such setting; {nearest(key, parameters)}")
    try:
        config = kind(**defaults | options)
        for name in ("r", "learning_rate", "num_train_epochs", "per_device_train_batch_size"):
            if hasattr(config, name) and not getattr(config, name) > 0:
                raise ValueError(f"`{name}` must be greater than 0, got {getattr(config, name)}")
        if not isinstance(getattr(config, "per_device_train_batch_size", 1), int):
            raise ValueError(f"batch size must be a whole number, got {config.per_device_train_batch_size}")
        if getattr(config, "inference_mode", False):
            raise ValueError("`inference_mode` must be false to train the adapter")
    except (TypeError, ValueError, KeyError) as error:
        raise InputError(f"`{section}`: {owner} rejects the settings: {error}") from error
    return config


def trainer_config(settings: Settings, section: str, folder: Path) -> SFTConfig | DPOConfig:
    """Build TRL's `SFTConfig` or `DPOConfig` from the section `sft` or `dpo`; `folder` is for checkpoints.

    Raises:
        InputError: TRL rejects a key or value.
    """
    seed, options, on_gpu = settings.run.seed, getattr(settings, section), torch.cuda.is_available()
    own = {"output_dir": str(folder), "seed": seed, "data_seed": seed, "bf16": settings.rewriter.dtype == "bfloat16"}
    own |= {"use_cpu": not on_gpu, "dataloader_pin_memory": on_gpu}  # Accelerate needs `use_cpu` for several processes
    if section == "dpo":
        options = options | {"logging_first_step": True}  # for `ZeroMarginCallback`
    return build_config(section, options, {"sft": SFTConfig, "dpo": DPOConfig}[section], DEFAULTS | own)
