"""The frame that every record-making stage shares: skip when complete, share turns out, go on, count, one summary
line."""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from core.artifacts import Stage, hold, in_batches
from core.errors import InputError
from core.runtime import Progress, log, process, wait_for_all


def carry_out(
    stage: Stage,
    batches: Callable[[], list[list[Any]]],
    make: Callable[[], Callable[[list[Any]], list[dict[str, Any]]]],
    summarise: Callable[[Iterable[dict[str, Any]]], dict[str, Any]],
    most_failed: float = 1.0,
) -> Stage:
    """Bring a stage to its end, or pass over it when it is complete.

    Args:
        stage: where the records go.
        batches: makes the fixed plan of this process: items with an `id`, in batches.
        make: loads what is needed and returns the function from a batch to its records. Called only when there is
            work.
        summarise: counts over all records, for the manifest and the summary line; `failed` and `total` are looked at.
        most_failed: share of failed records above which the run stops.

    Raises:
        InputError: too many records failed.
    """
    if stage.complete:
        stage.check_files()
        log.info("%s: complete, nothing to do (%s)", stage.name, stage.folder)
        return stage
    hold(stage.folder.parent, process()[0])
    wait_for_all()  # no process writes before rank 0 holds the folder
    start, plan = time.monotonic(), batches()
    total = sum(map(len, plan))
    done = stage.done()
    strange = done - {item.id for batch in plan for item in batch}
    if strange and process()[1] == 1:
        raise InputError(
            f"{stage.folder} holds a record of `{min(strange)}`, which this run does not have; delete the folder."
        )
    made: Counter = Counter(found=total)
    if any(item.id not in done for batch in plan for item in batch):
        if done:
            log.info("%s: going on after %d finished records", stage.name, len(done))
        worker = make()
        with Progress(stage.name, total) as progress:
            made = in_batches(stage, plan, worker, progress)
    wait_for_all()
    counts = summarise(stage.records())
    failed, all_records = counts.get("failed", 0), counts.get("total", 0)
    if all_records and failed / all_records > most_failed:
        reasons = ", ".join(f"{number} {reason}" for reason, number in counts.get("reasons", {}).items())
        raise InputError(
            f"{stage.name}: {failed} of {all_records} turns failed (reasons: {reasons}), more than "
            f"`run.max_failed_fraction` = {most_failed}. The records are in "
            f"{stage.folder}; after a change use `--run.redo_from {stage.name}`."
        )
    if process()[0] == 0:
        stage.finish(counts)
    wait_for_all()
    seconds = time.monotonic() - start
    said = ", ".join(
        f"{value} {key}" for key, value in counts.items() if isinstance(value, (int, float)) and key != "total"
    )
    rate = f"{made['made'] / seconds:.1f}/s, " if made["made"] else ""
    log.info("%s: %s turns (%s) in %.1f s, %s-> %s", stage.name, all_records, said, seconds, rate, stage.folder)
    return stage


def shared_out(items: list[Any], size: int) -> list[list[Any]]:
    """This process's share of the items, every n-th, cut into batches of at most `size`."""
    rank, world = process()
    mine = items[rank::world]
    return [mine[start : start + size] for start in range(0, len(mine), size)]
