"""Logging, progress and peak memory."""

import logging
import os
import resource
import sys
import time
import warnings
from contextlib import AbstractContextManager
from threading import Event, Thread
from typing import TextIO

from huggingface_hub.utils import disable_progress_bars
from tqdm import tqdm

from core.distributed import process

log = logging.getLogger("rewriter")
FIRST_LINE, LOG_EVERY = 8.0, 15.0  # seconds before the first progress line and between lines, without a terminal


def set_up_logging(stream: TextIO | None = None) -> None:
    """Set up logging, by default to standard output: INFO on rank 0; only errors, and no progress bars, on other
    ranks."""
    first = process()[0] == 0
    if not first or not sys.stderr.isatty():  # bars are for terminals
        disable_progress_bars()  # of huggingface_hub and, if it is imported later, transformers
        for name in ("HF_DATASETS_DISABLE_PROGRESS_BARS", "TQDM_DISABLE"):
            os.environ.setdefault(name, "1")
    logging.basicConfig(
        level=logging.INFO if first else logging.ERROR, format="%(message)s", stream=stream or sys.stdout, force=True
    )
    for library in ("transformers", "trl", "peft", "accelerate"):  # what they tell each other about future versions
        warnings.filterwarnings("ignore", category=FutureWarning, module=library)
    for noisy in ("httpx", "httpx2", "datasets", "transformers", "torch", "accelerate", "faiss"):
        logging.getLogger(noisy).setLevel(logging.WARNING if first else logging.ERROR)
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it warns about a missing faster kernel on a CPU


class Progress(AbstractContextManager):
    """A progress bar on a terminal, otherwise a log line every few seconds; both with rate and time left.

    A thread writes the lines, so that they also appear while a batch takes minutes.
    """

    def __init__(self, name: str, total: int, unit: str = "turns"):
        self.name, self.total, self.unit, self.count, self.resumed = name, total, unit, 0, 0
        self.start = time.monotonic()
        self.note = ""  # shown after the numbers
        self.bar, self.closed = None, Event()
        if process()[0] == 0 and sys.stderr.isatty():
            self.bar = tqdm(total=total, desc=name, unit=unit, leave=False)
        elif process()[0] == 0:
            Thread(target=self._write_lines, daemon=True).start()

    def already(self, number: int) -> None:
        """Count items of an earlier run, which the rate excludes."""
        self.count += number
        self.resumed += number
        if self.bar is not None:
            self.bar.initial += number
            self.bar.update(number)

    def advance(self, number: int = 1) -> None:
        self.count += number
        if self.bar is not None:
            self.bar.set_postfix_str(self.note)
            self.bar.update(number)

    def _write_lines(self) -> None:
        wait = FIRST_LINE
        while not self.closed.wait(wait):
            wait = LOG_EVERY
            seconds = time.monotonic() - self.start
            rate = (self.count - self.resumed) / seconds
            left = format_seconds((self.total - self.count) / rate) if rate else ""
            speed = f"{rate:.2g}/s, {left} left" if rate else f"{format_seconds(seconds)} so far"
            note = f" ({self.note})" if self.note else ""
            log.info("%s: %d/%d %s, %s%s", self.name, self.count, self.total, self.unit, speed, note)

    def close(self) -> None:
        self.closed.set()
        if self.bar is not None:
            self.bar.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def format_seconds(seconds: float) -> str:
    """A duration in seconds, minutes or hours, such as `90 s`, `25 min` and `3.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def peak_memory_mb() -> float:
    """Largest resident memory of this process so far, in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3
