"""Logging, progress and peak memory: how long work shows itself."""

import logging
import os
import resource
import sys
import time

from tqdm import tqdm

from core.distributed import process

log = logging.getLogger("rewriter")
LOG_EVERY = 15.0  # seconds between progress lines without a terminal


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


class Progress:
    """A bar on a terminal, a plain line every few seconds elsewhere; both with rate and time left.

    Args:
        name: stage.
        total: number of items.
        unit: what is counted.
    """

    def __init__(self, name: str, total: int, unit: str = "turns"):
        self.name, self.total, self.unit, self.count, self.known = name, total, unit, 0, 0
        self.start = self.last_line = time.monotonic()
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
        elif time.monotonic() - self.last_line >= LOG_EVERY:
            self.last_line = time.monotonic()
            rate = (self.count - self.known) / (self.last_line - self.start)
            left = (self.total - self.count) / rate if rate else float("inf")
            log.info("%s: %d/%d %s, %.1f/s, %.0f s left", self.name, self.count, self.total, self.unit, rate, left)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def peak_memory_mb() -> float:
    """Largest resident memory of this process so far, in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3
