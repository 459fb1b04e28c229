"""Log training curves, counts, gaps and measures of a run to TensorBoard and Weights & Biases.

All stages of a run log to a single run of the tracker: the folder `<run>/tensorboard`, or a run in the W&B project
`query-rewriter`. W&B reads its key and mode from the environment (`WANDB_API_KEY`, `WANDB_MODE=offline`).
"""

import hashlib
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.tracking import GeneralTracker, TensorBoardTracker, WandBTracker
from transformers import TrainerCallback

from core.distributed import process
from core.errors import InputError

PROJECT = "query-rewriter"


def check_trackers(names: Sequence[str]) -> None:
    """Check that the packages of the trackers are installed; raises an `InputError` that names a missing one."""
    for name in names:
        if find_spec(name) is None:
            raise InputError(f"`train.report_to: {name}` needs the package {name}; install it: pip install {name}.")


class RunTracker:
    """Sends values to the trackers of `train.report_to`, on the first process.

    Args:
        run_dir: the run folder; its name is the name of the run.
        names: `tensorboard`, `wandb`, both or none.
    """

    def __init__(self, run_dir: Path, names: Sequence[str]):
        self.trackers: list[GeneralTracker] = []
        if process()[0] != 0 or not names:
            return
        PartialState()  # the trackers need it to identify the main process
        if "tensorboard" in names:
            self.trackers.append(TensorBoardTracker("tensorboard", logging_dir=run_dir))
        if "wandb" in names:
            identity = hashlib.sha256(str(run_dir.resolve()).encode()).hexdigest()[:16]  # the same when resumed
            options = {"name": run_dir.name, "id": identity, "resume": "allow", "dir": str(run_dir)}
            self.trackers.append(WandBTracker(PROJECT, **options))
        for tracker in self.trackers:
            tracker.start()

    def log(self, stage: str, values: dict[str, Any], step: int | None = None) -> None:
        """Send the numeric values of a stage.

        Args:
            stage: name of the stage, the prefix of each name.
            values: name -> value; nested dicts are flattened to `outer/inner`, other values are ignored.
            step: training step; None for values of a whole stage.
        """
        numbers = dict(flatten(values, f"{stage}/"))
        for tracker in self.trackers:
            if tracker.name == "wandb":  # its step must not decrease from stage to stage
                tracker.log(numbers | ({f"{stage}/step": step} if step is not None else {}))
            else:
                tracker.log(numbers, step=step or 0)

    def finish(self) -> None:
        """Close the trackers."""
        for tracker in self.trackers:
            tracker.finish()


class TrackerCallback(TrainerCallback):
    """Sends the logs of a trainer to the trackers of the run."""

    def __init__(self, tracker: RunTracker, stage: str):
        self.tracker, self.stage = tracker, stage

    def on_log(self, args, state, control, logs, **kwargs) -> None:
        if "loss" in logs:
            self.tracker.log(self.stage, logs, state.global_step)


def flatten(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Flatten nested values to (path, number) pairs; skip values that are not numbers."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield prefix + name, float(value)
