"""STAGE sft: train a LoRA adapter on the highest-scoring rewrites with TRL's SFTTrainer."""

from datasets import Dataset

from core.progress import log
from core.stages import Stage
from train.adapter_training import complete_training
from train.policy import new_policy
from train.preference_data import SFT_COLUMNS, training_rows
from train.run import Run
from train.trainer_config import trainer_config
from train.trainers import GroupedSFTTrainer


def train_sft(run: Run, name: str, pairs: Stage) -> Stage:
    """Run the stage, resuming from its last checkpoint if one exists; write the adapter to `<stage>/adapter`.

    The settings `sft` and `lora` have the keys of TRL's `SFTConfig` and PEFT's `LoraConfig`.
    """
    model, sft, lora, seed = run.base, run.settings.sft, run.settings.lora, run.settings.run.seed
    settings = {"sft": sft, "lora": lora, "dtype": model.dtype, "seed": seed}
    stage = Stage(run.path, name, settings, {"pairs": pairs.identity, "model": model.fingerprint})
    if stage.complete:
        log.info("%s: complete, nothing to do (%s)", name, stage.folder)
        return stage

    # ------------------------------------------------------------------ model and data
    policy, tokenizer = new_policy(model, lora, seed)
    config = trainer_config(run.settings, "sft", stage.folder / "checkpoints")
    rows = training_rows(pairs, SFT_COLUMNS, policy, tokenizer, config.max_length, name)

    # ------------------------------------------------------------------ training
    trainer = GroupedSFTTrainer(
        model=policy, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
    )
    return complete_training(run, trainer, stage)
