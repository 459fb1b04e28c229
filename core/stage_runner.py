"""Run a stage: batches are distributed over processes, saved when they finish, and counted."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import Any

from core.distributed import gather, process, wait_for_all
from core.errors import InputError
from core.progress import Progress, log
from core.stages import Stage


def run_stage(
    stage: Stage,
    items: Collection[Any],
    batch_size: int,
    load_worker: Callable[[], Callable[[list[Any]], Iterable[Any]]],
    summarize: Callable[[Iterator[Any]], dict[str, Any]],
    max_failed_fraction: float = 1.0,
) -> Stage:
    """Run a stage, or do nothing if it is complete.

    Batches are fixed: batch i contains the items from `i * batch_size` on, and process `i % processes` runs it. A
    resumed run therefore forms the same batches and produces the same records.

    Args:
        stage: the stage to run.
        items: the items to process, each with the `id` of its turn, in the order of the records.
        batch_size: items that are processed, and saved, together.
        load_worker: loads models and other resources, and returns a function from a batch to one record per item, as
            a list or an iterator, whose records are written one by one. Called only if work remains.
        summarize: computes counts over all records for the manifest and the summary line, `failed`, `total` and
            `reasons` among them. Called only by rank 0.
        max_failed_fraction: the run stops if a larger share of the records failed.

    Raises:
        InputError: too many records failed, or the folder contains a record of another run.
    """
    if stage.complete:
        stage.check_files()
        log.info("%s: complete, nothing to do (%s)", stage.name, stage.folder)
        return stage
    wait_for_all()  # no process writes before rank 0 has locked the run folder
    start, done = time.monotonic(), stage.done()
    ids = [item.id for item in items]
    if unknown := done.difference(ids):
        raise InputError(
            f"{stage.folder} contains a record of `{min(unknown)}`, which is not in this run; delete the folder."
        )
    if done and len(done) < len(ids):
        log.info("%s: resuming after %d finished records", stage.name, len(done))
    if len(done) < len(ids):
        _run_batches(stage, items, batch_size, load_worker, done)
    batch_limits = [limit for limit in gather(stage.batch_limit) if limit]
    if process()[0] == 0:
        stage.merge_parts(ids)
        counts = summarize(iter(stage)) | ({"batch_tokens": min(batch_limits)} if batch_limits else {})
        _check_failures(stage, counts, max_failed_fraction)
        stage.finish(counts)
        _log_summary(stage, counts, len(ids) - len(done), time.monotonic() - start)
    wait_for_all()
    return stage


def _check_failures(stage: Stage, counts: dict[str, Any], max_failed_fraction: float) -> None:
    """Raise an InputError if too many records failed."""
    failed, total = counts.get("failed", 0), counts.get("total", 0)
    if total and failed / total > max_failed_fraction:
        reasons = ", ".join(f"{number} {reason}" for reason, number in counts.get("reasons", {}).items())
        raise InputError(
            f"{stage.name}: {failed} of {total} turns failed (reasons: {reasons}), more than "
            f"`run.max_failed_fraction` = {max_failed_fraction}. The records are in {stage.folder}; after a change, "
            f"use `--run.redo_from {stage.name}`."
        )


def _log_summary(stage: Stage, counts: dict[str, Any], computed: int, seconds: float) -> None:
    numbers = ", ".join(f"{value} {key}" for key, value in counts.items() if isinstance(value, int) and key != "total")
    rate = f"{computed / seconds:.1f}/s, " if computed else ""
    total = counts.get("total", 0)
    log.info("%s: %s turns (%s) in %.1f s, %s-> %s", stage.name, total, numbers, seconds, rate, stage.folder)


def _run_batches(stage: Stage, items: Collection, batch_size: int, load_worker: Callable, done: set[str]) -> None:
    """Compute the missing records of this process's batches."""
    rank, world = process()
    worker = None
    with Progress(stage.name, -(-len(items) // world)) as progress:
        for batch in islice(batched(items, batch_size), rank, None, world):
            missing = {item.id for item in batch} - done
            if missing:
                worker = worker or load_worker()
                stage.append(record for record in worker(batch) if record.id in missing)
                progress.advance(len(batch))
            else:
                progress.already(len(batch))


def batched(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Consecutive items in lists of at most `size`."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
