"""STAGE sft: warm the rewriter up on the highest-scoring rewrites (TRL's SFTTrainer, a LoRA adapter).

    accelerate launch train/sft.py --config configs/quickstart.yaml

Reads `<run>/pairs`; writes `<run>/sft/adapter` in PEFT format.
"""

import sys
from pathlib import Path

if not __package__:  # as a script, train/ is first on the path and not the root
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from core.artifacts import Stage, completed, hold
from core.cli import read_settings, run_command
from core.runtime import log, process, set_up_logging, use_cores, wait_for_all
from core.settings import Settings, rewriter_model

NAME = "sft"


def sft_stage(settings: Settings) -> Stage:
    """The stage's folder with what decides its content."""
    from core.language_model import fingerprint

    decided = {"sft": settings.sft, "lora": settings.lora, "dtype": settings.rewriter.dtype, "seed": settings.run.seed}
    inputs = {
        "pairs": completed(settings.run_dir / "pairs").identity(),
        "model": fingerprint(rewriter_model(settings), settings.rewriter.adapter),
    }
    return Stage(settings.run_dir / NAME, decided, inputs, process()[0])


def train_sft(settings: Settings) -> Stage:
    """Bring the stage to its end, from its last checkpoint if there is one."""
    stage = sft_stage(settings)
    if stage.complete:
        log.info("sft: complete, nothing to do (%s)", stage.folder)
        return stage

    hold(settings.run_dir, process()[0])
    from datasets import Dataset
    from trl import SFTTrainer

    from train.options import trainer_config
    from train.policy import new_policy
    from train.preference_data import check_batch, checked_rows, warm_up_rows
    from train.trainers import (
        finish_training,
        grouped,
        last_checkpoint,
        show_steps,
        stop_ids_of,
        with_completion_logits,
    )

    # ------------------------------------------------------------------ model and data
    model, tokenizer = new_policy(settings)
    config = trainer_config(NAME, settings, stage.folder / "checkpoints")
    rows = warm_up_rows(completed(settings.run_dir / "pairs"), tokenizer)
    rows = checked_rows(rows, tokenizer, stop_ids_of(model, tokenizer), config.max_length, NAME)

    # ------------------------------------------------------------------ training
    kind = with_completion_logits(SFTTrainer) if config.use_cpu else SFTTrainer
    trainer = grouped(kind, rows)(
        model=model, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
    )
    check_batch(next(iter(trainer.get_train_dataloader())), NAME)
    show_steps(trainer, NAME)
    trainer.train(resume_from_checkpoint=last_checkpoint(stage.folder / "checkpoints"))
    finish_training(trainer, stage, len(rows))
    wait_for_all()
    return stage


def main() -> None:
    settings = read_settings(__doc__, alone=NAME)
    set_up_logging()
    use_cores(settings.run.threads)
    train_sft(settings)


if __name__ == "__main__":
    run_command(main)
