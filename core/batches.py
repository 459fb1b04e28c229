"""Batches by token budget, and work on them: on a CPU several at once."""

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from core.errors import InputError, first_line
from core.language_model import LanguageModel
from core.runtime import log
from core.workers import beside
from core.workspace import workspace

NO_MEMORY = (torch.OutOfMemoryError, MemoryError)
NO_MEMORY_ON_CPU = "can't allocate memory"  # of torch's RuntimeError
SLACK = 1.03  # by which batches of even size grow until there are few enough


def batches_by_tokens(
    lengths: list[int], budget: int, order: Iterable[int] | None = None, even: float = 0.0, full: int = 0
) -> list[list[int]]:
    """Positions grouped so that rows times longest row stays within a budget.

    Args:
        lengths: tokens of each item.
        budget: most tokens of a padded batch; an item longer than that goes alone.
        order: all positions, neighbours to stand in one batch; longest first when not given.
        even: a batch of at least `full` tokens takes no item that is shorter than this share of its longest.
        full: see there.
    """
    if order is None:
        order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    batches: list[list[int]] = []
    longest = 0
    for i in order:
        longest = max(longest, lengths[i])
        uneven = batches and lengths[i] < even * longest and len(batches[-1]) * longest >= full
        if not batches or uneven or (len(batches[-1]) + 1) * longest > budget:
            batches.append([])
            longest = lengths[i]
        batches[-1].append(i)
    return batches


def evenly(lengths: list[int], budget: int, workers: int, order: Sequence[int] | None) -> list[list[int]]:
    """`batches_by_tokens`, no more than the budget asks for, or the next multiple of `workers`, and of even size, so
    that no worker is idle in the last round."""
    count = math.ceil(len(batches_by_tokens(lengths, budget, order)) / workers) * workers
    size = math.ceil(sum(lengths) / count)
    while size < budget:
        if len(batches := batches_by_tokens(lengths, size, order)) <= count:
            return batches
        size = math.ceil(size * SLACK)
    return batches_by_tokens(lengths, budget, order)


def each_batch(
    lm: LanguageModel,
    lengths: list[int],
    budget: int,
    work: Callable[[list[int]], None],
    order: Sequence[int] | None = None,
) -> None:
    """Do some work in batches of at most `budget` tokens: on a CPU several batches at once, one per core.

    A small model keeps two cores busier with two batches than with one, whose threads wait for each other at every
    operation.

    Args:
        lm: the model, to know its device.
        lengths: tokens of each item.
        budget: most tokens in work at once, in the processes beside this one too.
        work: is given positions of `lengths`; a batch that does not fit in memory is given again, in halves.
        order: as of `batches_by_tokens`.

    Raises:
        InputError: an item alone does not fit in memory.
    """
    if not lengths:
        return
    workers = torch.get_num_threads() if lm.device.type == "cpu" else 1
    batches = evenly(lengths, max(1, budget // (workers * beside())), workers, order)
    if workers == 1 or len(batches) == 1:
        for batch in batches:
            _do(batch, lengths, work)
        if beside() == 1:  # a process for one core goes on to batches like these
            workspace.release()
        return
    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for done in [pool.submit(_do, batch, lengths, work) for batch in batches]:
                done.result()
    finally:
        torch.set_num_threads(workers)


def _do(batch: list[int], lengths: list[int], work: Callable[[list[int]], None]) -> None:
    """Do a batch, or its halves where it does not fit in memory."""
    try:
        work(batch)
        return
    except (RuntimeError, MemoryError) as error:
        if not (isinstance(error, NO_MEMORY) or NO_MEMORY_ON_CPU in str(error)):
            raise
        if len(batch) == 1:
            raise InputError(
                f"a prompt of {lengths[batch[0]]} tokens alone does not fit in memory ({first_line(error)}); fewer or "
                "shorter documents (`retrieval.k`), a smaller model or 16 bits (`dtype: bfloat16`) need less."
            ) from error
    workspace.release()  # out here, where the error no longer holds what was made
    torch.cuda.empty_cache()
    log.warning("a batch of %d prompts did not fit in memory: going on in halves; a smaller `batch_tokens` saves the "
                "trial", len(batch))  # fmt: skip
    middle = len(batch) // 2
    for half in (batch[:middle], batch[middle:]):
        _do(half, lengths, work)
