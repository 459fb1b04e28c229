"""What the trainers report: progress, and a reward margin that does not start at 0."""

import torch
from transformers import TrainerCallback

from core.errors import InputError
from core.progress import Progress, log

FIGURES = {"loss": "loss", "margin": "rewards/margins", "accuracy": "rewards/accuracies"}


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

    def on_log(self, args, state, control, logs, **kwargs) -> None:
        if "loss" in logs:
            self.progress.note = ", ".join(f"{f} {float(logs[key]):.3g}" for f, key in FIGURES.items() if key in logs)

    def on_train_end(self, args, state, control, **kwargs) -> None:
        self.progress.close()


class ZeroMarginCallback(TrainerCallback):
    """Raises when the reward margin of the first step is not 0: policy and reference must start equal.

    Args:
        name: of the stage.
    """

    def __init__(self, name: str):
        self.name = name

    def on_log(self, args, state, control, logs, model=None, **kwargs) -> None:
        margin = logs.get("rewards/margins")
        if margin is None or state.global_step != 1:
            return
        sixteen_bits = args.bf16 or args.fp16 or getattr(model, "is_quantized", False)  # 4 bits compute in bfloat16
        exact = next(model.parameters()).dtype == torch.float32 and not sixteen_bits
        if abs(margin) > (1e-4 if exact else 0.05):  # 16 bits round differently in batches of other lengths
            raise InputError(
                f"{self.name}: the reward margin is {margin} at step 0 and must be 0; policy and reference differ."
            )
        log.info("%s: reward margin %.4f at step 0", self.name, abs(margin))
