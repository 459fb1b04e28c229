"""From the `lora`, `sft` and `dpo` settings to PEFT's and TRL's configuration objects."""

import inspect
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

from core.errors import InputError, nearest
from core.settings import Settings

# Where TRL's own default would surprise: activation checkpointing that only slows small models, truncation, batches
# that are half padding.
DEFAULTS = {
    "gradient_checkpointing": False,
    "max_length": None,  # nothing is truncated
    "train_sampling_strategy": "group_by_length",
    "lr_scheduler_type": "cosine",
    "warmup_steps": 0.1,
    "logging_steps": 10,
    "save_strategy": "steps",
    "save_steps": 50,
    "save_total_limit": 1,
    "report_to": "none",
    "disable_tqdm": True,  # its steps are shown by us
}
LORA = {"r": 16, "lora_alpha": 32, "target_modules": "all-linear", "lora_dropout": 0.0, "task_type": "CAUSAL_LM"}


def check_keys(section: str, given: dict[str, Any], known: list[str], owner: str) -> None:
    """Refuse a key that the library does not have.

    Raises:
        InputError: names the key and the nearest right one.
    """
    for key in given:
        if key not in known:
            raise InputError(f"`{section}.{key}`: {owner} has no such setting; {nearest(key, known)}")


def lora_config(settings: Settings):
    """PEFT's `LoraConfig` of the `lora` section over our defaults."""
    from peft import LoraConfig

    check_keys("lora", settings.lora, list(inspect.signature(LoraConfig).parameters), "PEFT's LoraConfig")
    try:
        config = LoraConfig(**LORA | settings.lora)
        if not config.r > 0:
            raise ValueError(f"`r` must be above 0, got {config.r}")
        if config.inference_mode:
            raise ValueError("`inference_mode` must be false: its weights are to be trained")
    except (TypeError, ValueError, KeyError) as error:
        raise InputError(f"`lora`: PEFT's LoraConfig refuses it: {error}") from error
    return config


def trainer_config(section: str, settings: Settings, folder: Path):
    """TRL's `SFTConfig` or `DPOConfig` of a section over our defaults.

    Args:
        section: `sft` or `dpo`.
        settings: the run's.
        folder: where checkpoints go.

    Raises:
        InputError: a key or value is refused.
    """
    import torch
    from trl import DPOConfig, SFTConfig

    kind = {"sft": SFTConfig, "dpo": DPOConfig}[section]
    given = getattr(settings, section)
    check_keys(section, given, [f.name for f in fields(kind)], f"TRL's {kind.__name__}")
    own = {"output_dir": str(folder), "seed": settings.run.seed, "data_seed": settings.run.seed}
    own["bf16"] = settings.rewriter.dtype == "bfloat16" and torch.cuda.is_available()
    own["use_cpu"] = not torch.cuda.is_available()  # else Accelerate takes several processes on a CPU for one
    own["dataloader_pin_memory"] = torch.cuda.is_available()
    values = DEFAULTS | own | given
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # TRL's own default uses a name that transformers renames
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
