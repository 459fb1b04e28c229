"""Training for the stages sft and dpo: resume from the last checkpoint, train, and save the adapter."""

import json
import shutil
from pathlib import Path
from zipfile import is_zipfile

from torch import Tensor
from transformers import PrinterCallback, ProgressCallback, Trainer

from core.artifacts import write_json
from core.distributed import process, wait_for_all
from core.errors import InputError
from core.progress import log
from core.settings import RewriterSettings
from core.stages import Stage
from rewriter.adapter_settings import save_adapter_settings
from train.callbacks import LOG_KEYS, StepProgress
from train.run import Run
from train.tracking import TrackerCallback

FEW_STEPS = 10  # with fewer steps the adapter stays nearly untrained
BATCH_SIZES = ("gradient_accumulation_steps", "per_device_train_batch_size")  # their product: rows per step


def last_checkpoint(folder: Path) -> str | None:
    """The newest complete checkpoint that was saved with the same number of processes."""
    complete = [path for path in checkpoints_in(folder) if is_complete(path)]
    return str(max(complete, key=lambda path: int(path.name.rpartition("-")[2]))) if complete else None


def remove_unusable_checkpoints(folder: Path) -> None:
    """Remove checkpoints that are incomplete or were saved with a different number of processes.

    A step takes one batch per process, so a different number of processes restarts training from the first step.
    """
    unusable = [path for path in checkpoints_in(folder) if not is_complete(path)]
    wait_for_all()
    for path in unusable if process()[0] == 0 else ():
        log.info("removed %s: incomplete, or saved with a different number of processes", path)
        shutil.rmtree(path)


def checkpoints_in(folder: Path) -> list[Path]:
    return [path for path in folder.glob("checkpoint-*") if path.name.rpartition("-")[2].isdecimal()]


def is_complete(checkpoint: Path) -> bool:
    """Whether every process has saved its random state (a zip file), and rank 0 the last file `trainer_state.json`."""
    processes, states = process()[1], list(checkpoint.glob("rng_state*.pth"))
    names = {f"rng_state_{rank}.pth" for rank in range(processes)} if processes > 1 else {"rng_state.pth"}
    try:
        json.loads((checkpoint / "trainer_state.json").read_text())
    except (OSError, ValueError):
        return False
    return {path.name for path in states} == names and all(map(is_zipfile, states))


def complete_training(run: Run, trainer: Trainer, stage: Stage) -> Stage:
    """Train, resuming from the last checkpoint in `<stage>/checkpoints` if one exists, and complete the stage.

    Saves the adapter to `<stage>/adapter` and the trainer's log to `<stage>/log.json`.

    Raises:
        InputError: `max_length` removes the completions of all rows.
    """
    if not len(trainer.train_dataset):
        raise InputError(f"{stage.name}: `max_length` {trainer.args.max_length} truncates all completions entirely.")
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    trainer.add_callback(StepProgress(stage.name))
    if run.tracker:
        trainer.add_callback(TrackerCallback(run.tracker, stage.name))
    remove_unusable_checkpoints(stage.folder / "checkpoints")
    checkpoint = last_checkpoint(stage.folder / "checkpoints")
    if checkpoint:
        log.info("resuming from %s", checkpoint)
    trainer.train(resume_from_checkpoint=checkpoint)
    weights = trainer.accelerator.get_state_dict(trainer.model_wrapped)  # FSDP and ZeRO-3 gather it from all processes
    if process()[0] == 0:
        save_adapter(trainer, stage, run.settings.rewriter, weights)
        finish_stage(trainer, stage)
    wait_for_all()
    return stage


def save_adapter(trainer: Trainer, stage: Stage, options: RewriterSettings, weights: dict[str, Tensor]) -> None:
    """Save the adapter, taken from the `weights` of the whole model, with tokenizer and settings."""
    folder, model = stage.folder / "adapter", trainer.accelerator.unwrap_model(trainer.model)
    model.save_pretrained(folder, selected_adapters=["default"], state_dict=weights)
    (folder / "README.md").unlink()  # PEFT's template of a model card
    trainer.processing_class.save_pretrained(folder)
    save_adapter_settings(folder, options)


def finish_stage(trainer: Trainer, stage: Stage) -> None:
    """Write the log, remove the checkpoints and complete the stage. Warns if there were too few steps."""
    rows, steps, history = len(trainer.train_dataset), trainer.state.global_step, trainer.state.log_history
    write_json(stage.folder / "log.json", history)
    shutil.rmtree(stage.folder / "checkpoints", ignore_errors=True)
    last = {key: value for entry in history for key, value in entry.items()}
    keys = LOG_KEYS | {"loss": "train_loss"}
    metrics = {label: last[key] for label, key in keys.items() if last.get(key) is not None}
    stage.finish({"total": rows, "steps": steps} | metrics)
    numbers = ", ".join(f"{label} {value:.3f}" for label, value in metrics.items())
    log.info("%s: %d rows, %d steps, %s in %.0f s -> %s", stage.name, rows, steps, numbers,
             last.get("train_runtime", 0.0), stage.folder / "adapter")  # fmt: skip
    if steps < FEW_STEPS:
        sizes = ((name, getattr(trainer.args, name)) for name in BATCH_SIZES)
        lower = [f"`{name}` ({size})" for name, size in sizes if size > 1]
        log.warning(
            "%s: %d steps are too few to learn from; provide more turns, or lower %s.",
            stage.name, steps, " or ".join([*lower, "`pairs.drop_fraction`"]),
        )  # fmt: skip
