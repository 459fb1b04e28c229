"""Stage dpo: learn from the pairs, with TRL's DPOTrainer on the LoRA adapter."""

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import TrainerCallback
from trl import DPOTrainer

from core.distributed import lock_run_dir, wait_for_all
from core.model_spec import ModelSpec
from core.progress import log
from core.settings import RewriterSettings, RunSettings
from core.stages import Stage
from train.callbacks import ZeroMarginCallback, add_progress, finish_training, last_checkpoint
from train.policy import check_reference
from train.preference_data import check_batch, check_rows, data_set_on_disk, preference_rows
from train.trainer_config import trainer_config
from train.trainers import with_length_grouping


def train_dpo(
    run: RunSettings,
    name: str,
    pairs: Mapping[str, Stage],
    start: Stage,
    model: ModelSpec,
    dpo: dict[str, Any],
    options: RewriterSettings,
    callbacks: Sequence[TrainerCallback] = (),
) -> Stage:
    """Complete the stage, from its last checkpoint if there is one; the adapter is in `<stage>/adapter`.

    Args:
        run: the run.
        name: of the stage.
        pairs: name -> complete stage whose pairs it learns from.
        start: the complete training stage whose adapter it starts from, which is also the reference.
        model: that adapter on its base model.
        dpo: settings for TRL's `DPOConfig`.
        options: saved beside the adapter.
        callbacks: added to the trainer.

    Raises:
        InputError: the reference is not a copy of the starting adapter, or the reward margin is not 0 at step 0.
    """
    settings = {"dpo": dpo, "dtype": model.dtype, "seed": run.seed}
    inputs = {stage_name: stage.identity for stage_name, stage in {**pairs, start.name: start}.items()}
    stage = Stage(run.path, name, settings, inputs)
    if stage.complete:
        log.info("%s: complete, nothing to do (%s)", name, stage.folder)
        return stage
    lock_run_dir(run.path)
    checkpoints = stage.folder / "checkpoints"

    # ------------------------------------------------------------------ policy and pairs
    lm = model.load(trainable=True)
    policy, tokenizer = lm.model, lm.tokenizer
    config = trainer_config("dpo", dpo, model.dtype, run.seed, checkpoints)
    rows = [row for stage_pairs in pairs.values() for row in preference_rows(stage_pairs, tokenizer)]
    rows = check_rows(rows, tokenizer, policy, config.max_length, name)
    data = data_set_on_disk(rows, checkpoints / "rows")

    # ------------------------------------------------------------------ trainer and reference
    # Given a PeftModel and no `peft_config`, TRL keeps a frozen copy of the adapter as the reference.
    trainer = with_length_grouping(DPOTrainer, rows)(
        model=policy, args=config, train_dataset=data, processing_class=tokenizer
    )
    check_reference(trainer.accelerator.unwrap_model(trainer.model))
    if config.precompute_ref_log_probs:
        log.info("%s: computing the log-probabilities of %d pairs under the reference", name, len(rows))
    check_batch(next(iter(trainer.get_train_dataloader())), name)

    # ------------------------------------------------------------------ training
    checkpoint = last_checkpoint(checkpoints)
    if checkpoint is None:
        trainer.add_callback(ZeroMarginCallback(name, config))
    add_progress(trainer, name)
    for callback in callbacks:
        trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=checkpoint)
    finish_training(trainer, stage, len(rows), options)
    wait_for_all()
    return stage
