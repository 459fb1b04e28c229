"""Work on several cores at once, in processes that begin with all that this one holds.

Threads would wait for Python's lock at every operation of a small model, which takes a fifth longer.
"""

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from typing import TypeVar

from core.errors import InputError

S, T = TypeVar("S"), TypeVar("T")
PR_SET_PDEATHSIG = 1  # prctl's: the signal that a process gets when its parent ends
M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1  # mallopt's, in glibc's malloc.h
LARGE, KEPT = 1 << 23, 1 << 24  # bytes: blocks that go back to the system at once; freed memory that is kept
_work: Callable = map  # what the processes find when they begin: so it need not be pickled
_beside = 1


def beside() -> int:
    """Processes at work beside each other, this one counted in, if `map_on_cores` has begun it; else 1."""
    return _beside


def cores(device: str = "") -> int:
    """Processes for `map_on_cores`: as many as torch has threads, where the models are on the CPU and the system can
    fork a process that has threads; else 1.

    Args:
        device: of the models; what `load_language_model` takes when not given.
    """
    import torch

    on_cpu = device == "cpu" or not device and not torch.cuda.is_available()
    return torch.get_num_threads() if on_cpu and sys.platform == "linux" else 1


def map_on_cores(work: Callable[[S], T], items: Sequence[S], workers: int) -> Iterator[T]:
    """`map`, in `workers` processes, in which torch has one thread each.

    Args:
        work: finds what there is in this process now; what it changes stays in its own.
        items: can be pickled, as can the results.
        workers: 1 for this process alone.

    Raises:
        InputError: a process was lost; says what to do.
    """
    global _work, _beside
    if workers == 1 or len(items) < 2:
        yield from map(work, items)
        return
    _work, _beside = work, workers
    try:
        context = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(os.getpid(),)) as pool:
            gc.freeze()  # a process that collects garbage would write to, and so copy, every object of this one
            made = pool.map(_do, items)  # the processes begin here
            gc.unfreeze()
            _work, _beside = map, 1
            try:
                yield from made
            except (KeyboardInterrupt, GeneratorExit):  # nobody waits for what they are at
                threading.excepthook = lambda _: None  # the pool's thread: what was cancelled cannot fail
                for process in multiprocessing.active_children():
                    process.kill()
                raise
    except BrokenProcessPool as error:
        raise InputError(
            "a process that worked on one of the cores was lost, most likely for want of memory; smaller batches "
            "(`batch_tokens`) need less. What is done is kept: the same command goes on from there (with `--resume`, "
            "if it has this flag)."
        ) from error
    finally:
        threading.excepthook = threading.__excepthook__
        _work, _beside = map, 1


def _begin(parent: int) -> None:
    """Set up a process: an end with its parent, no word at Ctrl-C, one thread."""
    system = ctypes.CDLL(None)
    system.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    with suppress(AttributeError):  # another C library than glibc
        system.mallopt(M_MMAP_THRESHOLD, LARGE)
        system.mallopt(M_TRIM_THRESHOLD, KEPT)
    import torch

    torch.set_num_threads(1)


def _do(item):
    return _work(item)
