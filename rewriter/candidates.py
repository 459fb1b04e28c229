"""STAGE candidates: sample several rewrites of every training turn.

    python -m rewriter.candidates --config configs/quickstart.yaml

Reads the training turns; writes `<run>/candidates`: `{"id", "dataset", "candidates": [{"text", "query", "logprob",
"tokens", "count", "source"}], "counts"}`.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from core.artifacts import Stage
from core.cli import read_settings, run_command
from core.records import Turn
from core.runtime import process, set_up_logging, use_cores
from core.settings import Settings, rewriter_model
from core.stages import carry_out, shared_out
from rewriter.conversations import turns_hash, turns_of
from rewriter.prompts import RewritePrompt

NAME = "candidates"
BATCH = 16  # turns that are sampled, and saved, together


def candidates_stage(settings: Settings) -> Stage:
    """The stage's folder with what decides its content."""
    from core.language_model import fingerprint

    rewriter = asdict(settings.rewriter)
    for name in ("batch_tokens", "model", "adapter"):  # the models are inputs, known by what is in them
        del rewriter[name]
    decided = rewriter | {"seed": settings.run.seed, "limit": settings.run.limit}
    inputs = {
        "train": turns_hash(settings, "train"),
        "model": fingerprint(rewriter_model(settings), settings.rewriter.adapter),
    }
    return Stage(settings.run_dir / NAME, decided, inputs, process()[0])


def make_candidates(settings: Settings) -> Stage:
    """Bring the stage to its end."""
    options = settings.rewriter

    def plan() -> list[list[Turn]]:
        return shared_out(turns_of(settings, "train", settings.run.limit), BATCH)

    def worker():
        from core.language_model import check_room, load_language_model
        from rewriter.sampling import sample_rewrites

        lm = load_language_model(rewriter_model(settings), options.adapter, options.dtype)
        check_room(lm, options.max_new_tokens, "rewriter.max_new_tokens")
        prompt = RewritePrompt.of(options, examples=True)

        def make(turns: list[Turn]) -> list[dict[str, Any]]:
            sampled = sample_rewrites(lm, turns, options, prompt, settings.run.seed)
            return [
                {
                    "id": turn.id,
                    "dataset": turn.dataset,
                    "candidates": [asdict(c) for c in candidates],
                    "counts": counts,
                }
                for turn, (candidates, counts) in zip(turns, sampled, strict=True)
            ]

        return make

    return carry_out(candidates_stage(settings), plan, worker, summarise, settings.run.max_failed_fraction)


def summarise(records: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Totals; a turn without any candidate is a failure."""
    counts: Counter = Counter()
    for record in records:
        counts.update(total=1, distinct=len(record["candidates"]), failed=not record["candidates"])
        counts.update(record["counts"])
    reasons = {"turns too long for the context": counts["too_long"]}
    reasons["turns with empty samples alone"] = counts["failed"] - counts["too_long"]
    return dict(counts) | {"reasons": {reason: number for reason, number in reasons.items() if number}}


def main() -> None:
    settings = read_settings(__doc__, alone=NAME)
    set_up_logging()
    use_cores(settings.run.threads)
    make_candidates(settings)


if __name__ == "__main__":
    run_command(main)
