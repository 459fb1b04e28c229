"""STAGE sft: warm the rewriter up on the highest-scoring rewrites (TRL's SFTTrainer, a LoRA adapter)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import TrainerCallback
from trl import SFTTrainer

from core.distributed import lock_run_dir, wait_for_all
from core.model_spec import ModelSpec
from core.progress import log
from core.settings import RewriterSettings, RunSettings
from core.stages import Stage
from train.callbacks import add_progress, finish_training, last_checkpoint
from train.policy import new_policy
from train.preference_data import check_batch, check_rows, sft_rows
from train.trainer_config import trainer_config
from train.trainers import with_completion_logits, with_length_grouping


def train_sft(
    run: RunSettings,
    name: str,
    pairs: Stage,
    model: ModelSpec,
    sft: dict[str, Any],
    lora: dict[str, Any],
    options: RewriterSettings,
    callbacks: Sequence[TrainerCallback] = (),
) -> Stage:
    """Complete the stage, from its last checkpoint if there is one; the adapter is in `<stage>/adapter`.

    Args:
        run: the run.
        name: of the stage.
        pairs: the complete stage before.
        model: the rewriter to start from.
        sft: settings for TRL's `SFTConfig`.
        lora: settings for PEFT's `LoraConfig`.
        options: saved beside the adapter.
        callbacks: added to the trainer.
    """
    settings = {"sft": sft, "lora": lora, "dtype": model.dtype, "seed": run.seed}
    stage = Stage(run.path, name, settings, {"pairs": pairs.identity, "model": model.fingerprint})
    if stage.complete:
        log.info("%s: complete, nothing to do (%s)", name, stage.folder)
        return stage
    lock_run_dir(run.path)
    checkpoints = stage.folder / "checkpoints"

    # ------------------------------------------------------------------ model and data
    policy, tokenizer = new_policy(model, lora, run.seed)
    config = trainer_config("sft", sft, model.dtype, run.seed, checkpoints)
    rows = check_rows(sft_rows(pairs, tokenizer), tokenizer, policy, config.max_length, name)

    # ------------------------------------------------------------------ training
    trainer_type = with_completion_logits(SFTTrainer) if config.use_cpu else SFTTrainer
    trainer = with_length_grouping(trainer_type, rows)(
        model=policy, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
    )
    check_batch(next(iter(trainer.get_train_dataloader())), name)
    add_progress(trainer, name)
    for callback in callbacks:
        trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=last_checkpoint(checkpoints))
    finish_training(trainer, stage, len(rows), options)
    wait_for_all()
    return stage


def adapter_of(stage: Stage) -> Path:
    """The folder of the adapter that a training stage made."""
    return stage.folder / "adapter"
