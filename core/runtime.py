"""Logging, progress, seeds, processes, peak memory: how a long run shows itself."""

import hashlib
import logging
import os
import resource
import shlex
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from tqdm import tqdm

from core.errors import InputError, first_line

if TYPE_CHECKING:
    from accelerate import PartialState

log = logging.getLogger("rewriter")
LOG_EVERY = 15.0  # seconds between progress lines without a terminal
LONGEST_WAIT = timedelta(days=1)  # for another process; a failed one ends the run at once


def process() -> tuple[int, int]:
    """Rank of this process and number of processes, as `torchrun` and `accelerate launch` set them."""
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def connected() -> "PartialState":
    """Accelerate's state of several processes; the first call connects them and selects the GPU of this process."""
    import torch
    from accelerate import PartialState

    return PartialState(cpu=not torch.cuda.is_available(), timeout=LONGEST_WAIT)


def wait_for_all() -> None:
    """Return when every process has come here.

    Raises:
        InputError: another process has stopped.
    """
    if process()[1] > 1:
        try:
            connected().wait_for_everyone()
        except RuntimeError as error:
            raise InputError(
                f"another process has stopped; its message says why ({first_line(error):.100})."
            ) from error


def check_launch() -> None:
    """Make sure that several processes were not asked for in vain.

    `accelerate launch --num_processes N` starts N processes on several GPUs only. Elsewhere it sets `MASTER_ADDR` as
    for N processes, and starts a single one without `WORLD_SIZE`.

    Raises:
        InputError: they were; names the command that starts several.
    """
    names = os.environ.keys()
    if "ACCELERATE_USE_CPU" not in names or "MASTER_ADDR" not in names or "WORLD_SIZE" in names:
        return
    module = sys.modules["__main__"].__spec__
    script = ["-m", module.name] if module else sys.argv[:1]
    raise InputError(
        "`accelerate launch --num_processes N` starts only one process where there are not several GPUs. For N "
        f"processes, run `torchrun --nproc_per_node N {shlex.join([*script, *sys.argv[1:]])}`; for a single process, "
        "leave out `--num_processes` and unset `MASTER_ADDR`."
    )


def set_up_logging() -> None:
    """One format, INFO on rank 0; errors alone, and no bars, elsewhere."""
    first = process()[0] == 0
    if not first or not sys.stderr.isatty():  # bars make no lines in a log
        for name in ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS", "TQDM_DISABLE"):
            os.environ.setdefault(name, "1")
    logging.basicConfig(
        level=logging.INFO if first else logging.ERROR, format="%(message)s", stream=sys.stdout, force=True
    )
    for noisy in ("httpx", "datasets", "transformers", "torch", "accelerate", "faiss"):
        logging.getLogger(noisy).setLevel(logging.WARNING if first else logging.ERROR)


def use_cores(threads: int | None = None) -> None:
    """Let torch use the cores of this machine: `accelerate launch` allows a process on a CPU one thread.

    Args:
        threads: threads of this process; its share of the cores when not given.
    """
    import torch

    here = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    torch.set_num_threads(threads or max(1, len(os.sched_getaffinity(0)) // here))


class Progress:
    """A bar on a terminal, a plain line every few seconds elsewhere; both with rate and time left.

    Args:
        name: stage.
        total: number of items.
        unit: what is counted.
    """

    def __init__(self, name: str, total: int, unit: str = "turns"):
        self.name, self.total, self.unit, self.count, self.known = name, total, unit, 0, 0
        self.start = self.said = time.monotonic()
        quiet = process()[0] != 0
        self.bar = tqdm(total=total, desc=name, unit=unit, leave=False) if sys.stderr.isatty() and not quiet else None

    def already(self, number: int) -> None:
        """Count items that were done before; the rate leaves them out."""
        self.count += number
        self.known += number
        if self.bar is not None:
            self.bar.initial += number
            self.bar.update(number)

    def advance(self, number: int = 1) -> None:
        self.count += number
        if self.bar is not None:
            self.bar.update(number)
        elif time.monotonic() - self.said >= LOG_EVERY:
            self.said = time.monotonic()
            rate = (self.count - self.known) / (self.said - self.start)
            left = (self.total - self.count) / rate if rate else float("inf")
            log.info("%s: %d/%d %s, %.1f/s, %.0f s left", self.name, self.count, self.total, self.unit, rate, left)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def seed_of(*parts: object) -> int:
    """A 63-bit seed that depends on every part and on nothing else (not on the process, the batch or the order)."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1


def peak_memory_mb() -> float:
    """Largest resident memory of this process so far, in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3
