"""STAGE dpo: train the LoRA adapter on the pairs with TRL's DPOTrainer."""

from collections.abc import Mapping
from contextlib import nullcontext

from core.distributed import process
from core.progress import Progress, log
from core.stages import Stage
from train.adapter_training import complete_training
from train.callbacks import ZeroMarginCallback
from train.preference_data import DPO_COLUMNS, data_set_on_disk, training_rows
from train.run import Run
from train.trainer_config import trainer_config
from train.trainers import GroupedDPOTrainer


def train_dpo(run: Run, name: str, pairs: Mapping[str, Stage], start: Stage) -> Stage:
    """Run the stage, resuming from its last checkpoint if one exists; write the adapter to `<stage>/adapter`.

    Trains on the pairs of all stages in `pairs` (name -> stage). The adapter of the training stage `start` is the
    starting point and the reference. The settings `dpo` have the keys of TRL's `DPOConfig`.

    Raises:
        InputError: the reward margin is not 0 at the first step, so policy and reference differ.
    """
    model, dpo, seed = run.trained(start.name), run.settings.dpo, run.settings.run.seed
    inputs = {stage_name: stage.identity for stage_name, stage in {**pairs, start.name: start}.items()}
    stage = Stage(run.path, name, {"dpo": dpo, "dtype": model.dtype, "seed": seed}, inputs)
    if stage.complete:
        log.info("%s: complete, nothing to do (%s)", name, stage.folder)
        return stage
    checkpoints = stage.folder / "checkpoints"

    # ------------------------------------------------------------------ policy and pairs
    lm = model.load(trainable=True)
    config = trainer_config(run.settings, "dpo", checkpoints)
    all_pairs = (pair for stage_pairs in pairs.values() for pair in stage_pairs)
    rows = training_rows(all_pairs, DPO_COLUMNS, lm.model, lm.tokenizer, config.max_length, name)
    data = data_set_on_disk(rows, checkpoints / "rows")

    # ------------------------------------------------------------------ training
    label, share = f"{name}, log-probabilities under the reference", -(-len(rows) // process()[1])
    with Progress(label, share, "pairs") if config.precompute_ref_log_probs else nullcontext() as progress:
        # For a PeftModel without `peft_config`, TRL keeps a frozen copy of the adapter as the reference.
        trainer = GroupedDPOTrainer(
            model=lm.model, args=config, train_dataset=data, processing_class=lm.tokenizer, reference_progress=progress
        )
    trainer.add_callback(ZeroMarginCallback(name))
    return complete_training(run, trainer, stage)
