"""Score a file of items, for the command `scoring.utility`.

An interrupted run leaves the scored items in `<output>.part` and its settings in `<output>.part.json`.
"""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from core.artifacts import read_json, read_json_lines, sha256, truncate_partial_line, write_json
from core.errors import InputError
from core.language_model import LanguageModel, check_room, load_language_model
from core.progress import Progress, log
from core.scoring_settings import RewardSettings
from core.stage_runner import batched
from scoring.items import parse_item, read_items
from scoring.registry import needs_entailment
from scoring.score_items import item_needs_generator, score_items
from scoring.utility import UtilityFlags

# Flags that affect the results, besides those of the reward.
GENERATOR_FLAGS = ("model", "adapter", "dtype", "quantization", "max_new_tokens", "seed")
BATCH_SIZE = 16  # items scored and saved together


def score_file(flags: UtilityFlags) -> None:
    """Score the items of a file. `--resume` continues an interrupted run from `<output>.part`.

    Raises:
        InputError: an item is invalid, or the output cannot be written or resumed.
    """
    if flags.output.is_dir():
        raise InputError(f"--output {flags.output}: is a folder; name a file in it.")
    if flags.output.exists() and not flags.output.is_file():
        raise InputError(f"--output {flags.output}: is not a regular file; name another.")
    items = read_items(flags.input, flags.reward)
    flags.output.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(flags.output.with_name(f".{flags.output.name}.lock"), blocking=False):
            scored = score_locked(flags, items)
    except Timeout as error:
        raise InputError(
            f"another process is writing {flags.output}; wait for it, or name another `--output`."
        ) from error
    values = [item[flags.reward][flags.model] for item in scored]
    present = [value for value in values if value is not None]
    mean = f", mean {flags.reward} {sum(present) / len(present):.4f}" if present else ""
    log.info("utility: %d items, %d without a value%s -> %s", len(scored), len(scored) - len(present), mean,
             flags.output)  # fmt: skip


def score_locked(flags: UtilityFlags, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Score the items and write the output, while holding its lock."""
    options = {field.name: getattr(flags, field.name) for field in fields(RewardSettings)}
    settings = options | {name: getattr(flags, name) for name in GENERATOR_FLAGS} | {"input": sha256(flags.input)}
    part = flags.output.with_name(f"{flags.output.name}.part")
    settings_file = part.with_name(f"{part.name}.json")
    scored = read_part(part, settings_file, settings, flags.resume)
    if scored:
        log.info("utility: resuming after %d finished items", len(scored))
    if flags.output.exists():
        log.warning("%s already exists and will be replaced", flags.output)
    lm = load_generator(flags, items) if len(scored) < len(items) else None
    with Progress("utility", len(items), "items") as progress:
        progress.already(len(scored))
        for number, batch in enumerate(batched(items, BATCH_SIZE)):
            finished = len(scored) - number * BATCH_SIZE
            if finished >= len(batch):
                continue
            # Score the whole batch again: a smaller batch could change the last digits.
            results = score_items(
                batch, lm=lm, name=flags.model, max_new_tokens=flags.max_new_tokens, batch_tokens=flags.batch_tokens,
                seed=flags.seed, **options,
            )[finished:]  # fmt: skip
            if not scored:
                write_json(settings_file, settings)
            with part.open("a", encoding="utf-8") as handle:
                handle.writelines(json.dumps(item, ensure_ascii=False, allow_nan=False) + "\n" for item in results)
            scored += results
            progress.advance(len(results))
    if flags.output.suffix == ".json":
        write_json(flags.output, scored)
        part.unlink()
    else:
        part.replace(flags.output)
    settings_file.unlink()
    return scored


def read_part(part: Path, settings_file: Path, settings: dict[str, Any], resume: bool) -> list[dict[str, Any]]:
    """Read the items that an interrupted run has scored, if any. Removes a partial last line.

    Raises:
        InputError: there are items but `resume` is false, their settings were different, or a file is damaged.
    """
    if not part.exists() or part.stat().st_size == 0:
        return []
    if not resume:
        raise InputError(f"{part} has items of an interrupted run; continue with `--resume`, or remove it.")
    try:
        before = read_json(settings_file)
    except (InputError, OSError) as error:
        raise InputError(
            f"{settings_file}, the settings of {part}, is missing or damaged; remove {part} to start again."
        ) from error
    for name, value in settings.items():
        if before.get(name) != value:
            raise InputError(
                f"{part} was started with another `{name}` ({before.get(name)!r}, now {value!r}); remove {part} to "
                "start again."
            )
    truncate_partial_line(part)
    try:
        return [item for _, item in read_json_lines(part)]
    except InputError as error:
        raise InputError(f"{error} Remove {part} to start again.") from error


def load_generator(flags: UtilityFlags, items: list[dict[str, Any]]) -> LanguageModel | None:
    """Load the generator; None if no item needs it."""
    parsed = [parse_item(item, "item", flags.reward) for item in items]
    if not any(item_needs_generator(item, flags.reward, flags.model) for item in parsed):
        return None
    lm = load_language_model(
        flags.model, flags.adapter, flags.dtype, device=flags.device, quantization=flags.quantization,
        device_map=flags.device_map,
    )  # fmt: skip
    check_room(lm, flags.max_new_tokens, "--max_new_tokens")
    if needs_entailment([flags.reward]):
        check_room(lm, flags.sample_tokens, "--sample_tokens")
    return lm
