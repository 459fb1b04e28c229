"""What the SFT and DPO stages share around TRL's trainers: checkpoints to go on from, and the end of a training."""

import shutil
from pathlib import Path

from core.artifacts import Stage, write_atomic, write_json
from core.errors import InputError
from core.runtime import Progress, log, process, seed_of
from train.policy import ADAPTER

BATCH_SIZES = ("gradient_accumulation_steps", "per_device_train_batch_size")  # together, rows of a step
FEW_STEPS = 10  # fewer leave an adapter as good as untrained
CARD = """# Query rewriter

A LoRA adapter for `{model}` that turns the last question of a conversation into a stand-alone search query.
Stage `{stage}`: {rows} rows, {steps} steps.

    python -m rewriter --model {model} --adapter FOLDER

`FOLDER` is the one that holds this file.
"""


def last_checkpoint(folder: Path) -> str | None:
    """The newest whole checkpoint: `trainer_state.json` is what Transformers writes last."""
    found = [
        path
        for path in folder.glob("checkpoint-*")
        if path.name.rpartition("-")[2].isdecimal()
        and (path / "trainer_state.json").exists()
        and any(path.rglob("adapter_model.safetensors"))
    ]
    if not found:
        return None
    newest = max(found, key=lambda path: int(path.name.rpartition("-")[2]))
    log.info("going on from %s", newest)
    return str(newest)


def show_steps(trainer, name: str) -> None:
    """A bar or plain lines with rate and time left as in the other stages, and a line of figures at every log.

    Transformers' own go.
    """
    from transformers import PrinterCallback, ProgressCallback, TrainerCallback

    shown = {"loss": "loss", "rewards/margins": "margin", "rewards/accuracies": "accuracy", "learning_rate": "rate"}

    class Shows(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs) -> None:
            self.progress = Progress(name, state.max_steps - state.global_step, "steps")

        def on_step_end(self, args, state, control, **kwargs) -> None:
            self.progress.advance()

        def on_log(self, args, state, control, logs=None, **kwargs) -> None:
            if process()[0] == 0 and "loss" in (logs or {}):
                figures = ", ".join(f"{said} {float(logs[key]):.3g}" for key, said in shown.items() if key in logs)
                log.info("%s: step %d/%d: %s", name, state.global_step, state.max_steps, figures)

        def on_train_end(self, args, state, control, **kwargs) -> None:
            self.progress.close()

    for theirs in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(theirs)
    trainer.add_callback(Shows())


def starts_level(config):
    """A callback that raises when the first reward margin is not 0: policy and reference must start equal."""
    from transformers import TrainerCallback

    config.logging_first_step = True
    tolerance = 0.05 if config.bf16 or config.fp16 else 1e-4

    class StartsLevel(TrainerCallback):
        seen = False

        def on_log(self, args, state, control, logs=None, **kwargs) -> None:
            margin = (logs or {}).get("rewards/margins")
            if margin is None or self.seen:
                return
            self.seen = True
            if abs(margin) > tolerance:
                raise InputError(
                    f"dpo: the reward margin is {margin} at step 0 and must be 0; policy and reference differ."
                )
            log.info("dpo: reward margin %.4f at step 0", abs(margin))

    return StartsLevel()


def grouped(kind: type, rows: list[dict]) -> type:
    """A trainer whose batches have rows of like length, in an order that follows from seed and epoch alone.

    Transformers' own `group_by_length` draws from the process's random numbers: a training that goes on from a
    checkpoint would see other batches than one that was never stopped.

    Args:
        kind: one of TRL's trainers.
        rows: its training data, each with its `length` in tokens.
    """
    from torch import Generator, randperm
    from torch.utils.data import Sampler
    from transformers.trainer_pt_utils import get_length_grouped_indices

    class ByLength(Sampler):
        def __init__(self, batch: int, seed: int):
            self.batch, self.seed, self.epoch = batch, seed, 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __len__(self) -> int:
            return len(rows)

        def __iter__(self):
            draw = Generator().manual_seed(seed_of("batches", self.seed, self.epoch))
            order = get_length_grouped_indices([row["length"] for row in rows], self.batch, generator=draw)
            whole = len(order) // self.batch
            for number in [*randperm(whole, generator=draw).tolist(), whole]:  # what is left over comes last
                yield from order[number * self.batch : (number + 1) * self.batch]

    class Grouped(kind):
        def _get_train_sampler(self, train_dataset=None):
            if self.args.train_sampling_strategy != "group_by_length":
                return super()._get_train_sampler(train_dataset)
            return ByLength(self.args.train_batch_size * self.args.gradient_accumulation_steps, self.args.seed)

    return Grouped


def with_completion_logits(kind: type) -> type:
    """An SFT trainer that computes logits from the first completion token of a batch on.

    TRL does so on GPUs; on a CPU it scores the prompts' tokens too, which takes nearly half of the time of a small
    model with a large vocabulary.

    Args:
        kind: TRL's `SFTTrainer`, or a subclass.
    """
    from torch import arange
    from torch.nn.functional import cross_entropy

    class CompletionLogits(kind):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            labels = inputs["labels"]
            first = int((labels != -100).any(0).nonzero()[0])
            outputs = model(
                **{name: value for name, value in inputs.items() if name != "labels"},
                logits_to_keep=arange(first - 1, labels.shape[1] - 1, device=labels.device),
                use_cache=False,
            )
            targets = labels[:, first:]
            counted = targets != -100
            total = cross_entropy(outputs.logits[counted].float(), targets[counted], reduction="sum")
            if num_items_in_batch is None:
                loss = total / counted.sum()
            else:
                loss = total / num_items_in_batch
                if self.args.average_tokens_across_devices:  # of all processes, whose gradients are averaged
                    loss = loss * self.accelerator.num_processes
            return (loss, outputs) if return_outputs else loss

    return CompletionLogits


def stop_ids_of(model, tokenizer) -> list[int]:
    """Tokens that end a turn."""
    from core.language_model import LanguageModel

    return LanguageModel("", model, tokenizer).stop_ids


def finish_training(trainer, stage: Stage, rows: int) -> None:
    """Save the adapter, its card and the log, remove the checkpoints, mark the stage complete, say one line."""
    if process()[0] != 0:
        return
    model = trainer.accelerator.unwrap_model(trainer.model)
    model.save_pretrained(stage.folder / ADAPTER, selected_adapters=["default"])
    trainer.processing_class.save_pretrained(stage.folder / ADAPTER)
    base = model.peft_config["default"].base_model_name_or_path
    card = CARD.format(model=base, stage=stage.name, rows=rows, steps=trainer.state.global_step)
    write_atomic(stage.folder / ADAPTER / "README.md", card)  # in place of PEFT's, which is a form to fill in
    history = trainer.state.log_history
    write_json(stage.folder / "log.json", history)
    shutil.rmtree(stage.folder / "checkpoints", ignore_errors=True)
    last = {key: value for entry in history for key, value in entry.items()}
    counts = {"total": rows, "steps": trainer.state.global_step, "train_loss": last.get("train_loss")}
    shown = {
        "loss": last.get("train_loss"),
        "margin": last.get("rewards/margins"),
        "accuracy": last.get("rewards/accuracies"),
    }
    stage.finish(counts | {key: value for key, value in shown.items() if value is not None})
    figures = ", ".join(f"{key} {value:.3f}" for key, value in shown.items() if value is not None)
    log.info("%s: %d rows, %d steps, %s in %.0f s -> %s", stage.name, rows, trainer.state.global_step, figures,
             last.get("train_runtime", 0.0), stage.folder / ADAPTER)  # fmt: skip
    if trainer.state.global_step < FEW_STEPS:
        sizes = ((name, getattr(trainer.args, name)) for name in BATCH_SIZES)
        lower = [f"`{stage.name}.{name}` ({size})" for name, size in sizes if size > 1]
        log.warning(
            "%s: %d steps are too few to learn from: give more turns, or lower %s.",
            stage.name, trainer.state.global_step, " or ".join([*lower, "`pairs.drop_fraction`"]),
        )  # fmt: skip
