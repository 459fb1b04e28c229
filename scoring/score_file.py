"""Score a file of items: what `scoring.utility` does once its flags are checked."""

from dataclasses import fields

from core.artifacts import sha256
from core.errors import InputError
from core.language_model import LanguageModel, check_room, load_language_model
from core.progress import Progress, log
from core.scoring_settings import RewardSettings
from scoring.flags import UtilityFlags
from scoring.score_items import score_items
from scoring.utility_io import PartialOutput, parse_item, read_items

GENERATOR_FLAGS = ("model", "adapter", "dtype", "max_new_tokens", "seed")  # that decide the results
BATCH_SIZE = 16  # items that are scored and saved together


def score_file(flags: UtilityFlags) -> None:
    """Score the items of a file. An interrupted run leaves `<output>.part`, and `--resume` continues it.

    Raises:
        InputError: an item is not usable, or the output cannot be written or resumed.
    """
    if flags.output.is_dir():
        raise InputError(f"--output {flags.output}: is a folder; name a file in it.")
    if flags.output.exists() and not flags.output.is_file():
        raise InputError(f"--output {flags.output}: is not a regular file; name another.")
    items = read_items(flags.input, flags.reward)
    options = {field.name: getattr(flags, field.name) for field in fields(RewardSettings)}
    settings = options | {name: getattr(flags, name) for name in GENERATOR_FLAGS}
    output = PartialOutput(flags.output, settings | {"input": sha256(flags.input)})
    resumes = output.started
    if resumes and not flags.resume:
        raise InputError(f"{output.part} has items of an interrupted run; continue it with `--resume`, or remove it.")
    if flags.output.exists():
        log.warning("%s is there already and will be replaced", flags.output)
    output.open()
    try:
        scored = output.resume(items, flags.input) if resumes else []
        if scored:
            log.info("utility: resuming after %d finished items", len(scored))
        lm = load_generator(flags, items) if len(scored) < len(items) else None
        with Progress("utility", len(items), "items") as progress:
            progress.already(len(scored))
            # Whole batches, so that an interrupted run gives the same digits.
            first = len(scored) // BATCH_SIZE * BATCH_SIZE if len(scored) < len(items) else len(items)
            for start in range(first, len(items), BATCH_SIZE):
                batch = items[start : start + BATCH_SIZE]
                results = score_items(
                    batch, lm=lm, name=flags.model, max_new_tokens=flags.max_new_tokens,
                    batch_tokens=flags.batch_tokens, seed=flags.seed, **options,
                )[max(0, len(scored) - start) :]  # fmt: skip
                output.append(results)
                scored += results
                progress.advance(len(results))
    finally:
        output.close()
    output.finish(scored)
    values = [item[flags.reward][flags.model] for item in scored]
    known = [value for value in values if value is not None]
    mean = f", mean {flags.reward} {sum(known) / len(known):.4f}" if known else ""
    log.info("utility: %d items, %d without a value%s -> %s", len(scored), len(scored) - len(known), mean,
             flags.output)  # fmt: skip


def load_generator(flags: UtilityFlags, items: list[dict]) -> LanguageModel | None:
    """The generator; None where the reward needs none, or UDCG finds all probabilities in the items."""
    if flags.reward == "reciprocal_rank":
        return None
    parsed = [parse_item(item, "item", flags.reward) for item in items]
    if flags.reward == "udcg" and all(item.abstentions(flags.model) for item in parsed if item.passages):
        return None
    lm = load_language_model(flags.model, flags.adapter, flags.dtype, device=flags.device)
    check_room(lm, flags.max_new_tokens, "--max_new_tokens")
    if flags.reward.startswith("delta_seper"):
        check_room(lm, flags.sample_tokens, "--sample_tokens")
    return lm
