"""Callbacks for the trainers: progress, and a check that the reward margin starts at 0."""

import torch
from transformers import TrainerCallback

from core.errors import InputError
from core.progress import Progress, log

# Name in our log -> key of TRL's log.
LOG_KEYS = {"loss": "loss", "margin": "rewards/margins", "accuracy": "rewards/accuracies"}


class StepProgress(TrainerCallback):
    """Shows progress with rate, remaining time and the last logged metrics."""

    def __init__(self, name: str):
        self.name = name

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        self.progress = Progress(self.name, state.max_steps, "steps")
        self.progress.already(state.global_step)

    def on_step_end(self, args, state, control, **kwargs) -> None:
        self.progress.advance()

    def on_log(self, args, state, control, logs, **kwargs) -> None:
        if "loss" in logs:
            self.progress.note = ", ".join(f"{f} {float(logs[key]):.3g}" for f, key in LOG_KEYS.items() if key in logs)

    def on_train_end(self, args, state, control, **kwargs) -> None:
        self.progress.close()


class ZeroMarginCallback(TrainerCallback):
    """Checks that the reward margin is 0 at the first step, as policy and reference must start equal.

    Raises:
        InputError: the margin is not 0, within rounding.
    """

    def __init__(self, name: str):
        self.name = name

    def on_log(self, args, state, control, logs, model=None, **kwargs) -> None:
        margin = logs.get("rewards/margins")
        if margin is None or state.global_step != 1:
            return
        # 4-bit models compute in bfloat16.
        sixteen_bits = args.bf16 or args.fp16 or getattr(model, "is_quantized", False)
        exact = next(model.parameters()).dtype == torch.float32 and not sixteen_bits
        if abs(margin) > (1e-4 if exact else 0.05):  # in 16 bits, rounding depends on the batch
            raise InputError(
                f"{self.name}: the reward margin is {margin} at step 0, must be 0; policy and reference differ."
            )
        log.info("%s: reward margin %.4f at step 0", self.name, abs(margin))
