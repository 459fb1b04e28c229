"""The unfinished output of `scoring.utility`: `<output>.part` holds what is judged, `<output>.part.json` how."""

import fcntl
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from core.artifacts import read_json, read_json_lines
from core.errors import InputError
from core.progress import log
from core.stages import truncate_partial_line


def plan_of(part: Path) -> Path:
    """The file that says how an unfinished output is made."""
    return part.with_name(part.name + ".json")


def begun(part: Path, resume: bool) -> bool:
    """Whether there is something to go on with.

    Raises:
        InputError: there is, and nobody asked for it.
    """
    found = part.exists() and part.stat().st_size > 0
    if found and not resume:
        raise InputError(f"{part} holds an unfinished run; go on with `--resume`, or remove it.")
    return found


def judged_before(
    part: Path, asked: dict[str, Any], items: Sequence[dict[str, Any]], source: Path
) -> list[dict[str, Any]]:
    """What an unfinished output holds.

    Args:
        part: the file; a last line that is not whole is cut off.
        asked: how the items are judged now, with `reward` and `model`.
        items: what is judged.
        source: the file they come from.

    Raises:
        InputError: it was begun otherwise, or a record is not that of the item at its place.
    """
    remedy = f"remove {part} to start again"
    try:
        before = read_json(plan_of(part))
    except (InputError, OSError) as error:
        raise InputError(
            f"{plan_of(part)}, which says how {part} was made, is missing or damaged; {remedy}."
        ) from error
    if changed := [name for name in asked if before.get(name) != asked[name]]:
        name = changed[0]
        raise InputError(
            f"{part} was begun with another `{name}` ({before.get(name)!r}, now {asked[name]!r}); {remedy}."
        )
    truncate_partial_line(part)
    try:
        done = [item for _, item in read_json_lines(part)]
    except InputError as error:
        raise InputError(f"{error} {remedy[0].upper()}{remedy[1:]}.") from error
    if len(done) > len(items):
        raise InputError(f"{part} holds {len(done)} items, {source} {len(items)}; {remedy}.")
    for number, (judged, item) in enumerate(zip(done, items, strict=False), 1):
        if not is_judged(judged, item, asked["reward"], asked["model"]):
            raise InputError(
                f"{part}:{number}: is not item {number} of {source} with its `{asked['reward']}`; {remedy}."
            )
    log.info("utility: going on after %d finished items", len(done))
    return done


def is_judged(judged: dict[str, Any], item: dict[str, Any], reward: str, model: str) -> bool:
    """Whether a record is the item with the reward's value or its reason."""
    if not isinstance(judged.get(reward), dict) or model not in judged[reward]:
        return False
    added = (reward, "errors", "models_info", "passages")
    same = all(judged.get(key) == value for key, value in item.items() if key not in added)
    texts = [[passage.get("text") for passage in one.get("passages", [])] for one in (judged, item)]
    return same and texts[0] == texts[1]


def alone(handle: IO[str], size: int, part: Path) -> None:
    """Keep other processes from an unfinished output, as large as it was found, until the handle is closed.

    Raises:
        InputError: another process is writing it.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held = part.exists() and part.stat().st_size == size
    except BlockingIOError:
        held = False
    if not held:
        raise InputError(f"another process is writing {part}; wait for it, or name another `--output`.")
