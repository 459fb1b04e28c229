"""What SFT and DPO share: checkpoints to resume from, progress, checks, and the end of a training."""

import shutil
from pathlib import Path

import torch
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback, TrainingArguments

from core.artifacts import write_atomic, write_json
from core.distributed import process
from core.errors import InputError
from core.progress import Progress, log
from core.settings import RewriterSettings
from core.stages import Stage
from rewriter.adapter_settings import save_adapter_settings

FEW_STEPS = 10  # fewer leave an adapter nearly untrained
FIGURES = {"loss": "loss", "rewards/margins": "margin", "rewards/accuracies": "accuracy"}
BATCH_SIZES = ("gradient_accumulation_steps", "per_device_train_batch_size")  # their product is the rows of a step
CARD = """# Query rewriter

A LoRA adapter for `{model}` that turns the last question of a conversation into a stand-alone search query.
Stage `{stage}`: {rows} rows, {steps} steps.

    python -m rewriter FOLDER

`FOLDER` is the folder of this file; `rewriter.json` names the base model and the prompt.
"""


def last_checkpoint(folder: Path) -> str | None:
    """The newest complete checkpoint: Transformers writes `trainer_state.json` last."""
    checkpoints = [
        path
        for path in folder.glob("checkpoint-*")
        if path.name.rpartition("-")[2].isdecimal()
        and (path / "trainer_state.json").exists()
        and any(path.rglob("adapter_model.safetensors"))
    ]
    if not checkpoints:
        return None
    newest = max(checkpoints, key=lambda path: int(path.name.rpartition("-")[2]))
    log.info("resuming from %s", newest)
    return str(newest)


class StepProgress(TrainerCallback):
    """Progress with rate, time left and the last logged figures.

    Args:
        name: of the stage.
    """

    def __init__(self, name: str):
        self.name = name

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        self.progress = Progress(self.name, state.max_steps, "steps")
        self.progress.already(state.global_step)

    def on_step_end(self, args, state, control, **kwargs) -> None:
        self.progress.advance()

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if "loss" in (logs or {}):
            figures = [f"{label} {float(logs[key]):.3g}" for key, label in FIGURES.items() if key in logs]
            self.progress.note = ", ".join(figures)

    def on_train_end(self, args, state, control, **kwargs) -> None:
        self.progress.close()


def add_progress(trainer: Trainer, name: str) -> None:
    """Replace the progress output of Transformers by ours."""
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    trainer.add_callback(StepProgress(name))


class ZeroMarginCallback(TrainerCallback):
    """Raises when the first reward margin is not 0: policy and reference must start equal.

    Args:
        name: of the stage.
        config: of the trainer; its first step is logged.
    """

    def __init__(self, name: str, config: TrainingArguments):
        self.name = name
        config.logging_first_step = True
        self.checked = False

    def on_log(self, args, state, control, logs=None, model=None, **kwargs) -> None:
        margin = (logs or {}).get("rewards/margins")
        if margin is None or self.checked:
            return
        self.checked = True
        exact = next(model.parameters()).dtype == torch.float32 and not (args.bf16 or args.fp16)
        if abs(margin) > (1e-4 if exact else 0.05):  # 16 bits round differently in batches of other lengths
            raise InputError(
                f"{self.name}: the reward margin is {margin} at step 0 and must be 0; policy and reference differ."
            )
        log.info("%s: reward margin %.4f at step 0", self.name, abs(margin))


def finish_training(trainer: Trainer, stage: Stage, rows: int, options: RewriterSettings) -> None:
    """Save the adapter with its settings and card, and the log; remove the checkpoints; complete the stage.

    Args:
        trainer: after training.
        stage: its stage.
        rows: number of training rows.
        options: saved beside the adapter.
    """
    if process()[0] != 0:
        return
    model, state, folder = trainer.accelerator.unwrap_model(trainer.model), trainer.state, stage.folder / "adapter"
    model.save_pretrained(folder, selected_adapters=["default"])
    trainer.processing_class.save_pretrained(folder)
    save_adapter_settings(folder, options)
    base = model.peft_config["default"].base_model_name_or_path
    card = CARD.format(model=base, stage=stage.name, rows=rows, steps=state.global_step)
    write_atomic(folder / "README.md", card)  # PEFT's own is a form to fill in
    write_json(stage.folder / "log.json", state.log_history)
    shutil.rmtree(stage.folder / "checkpoints", ignore_errors=True)
    last = {key: value for entry in state.log_history for key, value in entry.items()}
    keys = {"loss": "train_loss", "margin": "rewards/margins", "accuracy": "rewards/accuracies"}
    figures = {label: last[key] for label, key in keys.items() if last.get(key) is not None}
    stage.finish({"total": rows, "steps": state.global_step} | figures)
    numbers = ", ".join(f"{label} {value:.3f}" for label, value in figures.items())
    log.info("%s: %d rows, %d steps, %s in %.0f s -> %s", stage.name, rows, state.global_step, numbers,
             last.get("train_runtime", 0.0), folder)  # fmt: skip
    if state.global_step < FEW_STEPS:
        sizes = ((name, getattr(trainer.args, name)) for name in BATCH_SIZES)
        lower = [f"`{name}` ({size})" for name, size in sizes if size > 1]
        log.warning(
            "%s: %d steps are too few to learn from: give more turns, or lower %s.",
            stage.name, state.global_step, " or ".join([*lower, "`pairs.drop_fraction`"]),
        )  # fmt: skip
