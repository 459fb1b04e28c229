"""STAGE candidates: sample several rewrites of every training turn."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from core.language_model import check_room
from core.model_spec import ModelSpec
from core.records import TurnRecord
from core.settings import RewriterSettings, RunSettings
from core.stage_runner import run_stage
from core.stages import Stage
from rewriter.conversations import TurnSet
from rewriter.prompts import RewritePrompt
from rewriter.sampling import sample_rewrites

BATCH_SIZE = 16  # turns that are sampled, and saved, together


def make_candidates(run: RunSettings, name: str, turns: TurnSet, model: ModelSpec, options: RewriterSettings) -> Stage:
    """Complete the stage.

    Args:
        run: the run.
        name: of the stage.
        turns: the training turns.
        model: the rewriter to sample from.
        options: how it is prompted and sampled; `model` and `adapter` are not looked at.
    """
    settings = asdict(options) | {"seed": run.seed}
    for other in ("batch_tokens", "model", "adapter", "quantization", "device_map"):
        del settings[other]
    inputs = {"turns": turns.fingerprint, "model": model.fingerprint}
    stage = Stage(run.path, name, settings, inputs, TurnRecord)

    def load_worker():
        lm = model.load()
        check_room(lm, options.max_new_tokens, "rewriter.max_new_tokens")
        prompt = RewritePrompt.of(options, examples=True)
        return lambda batch: sample_rewrites(lm, batch, options, prompt, run.seed)

    return run_stage(stage, turns, BATCH_SIZE, load_worker, summarize, run.max_failed_fraction)


def summarize(records: Iterable[TurnRecord]) -> dict[str, Any]:
    """Totals; a turn without any candidate is a failure."""
    counts: Counter = Counter()
    for record in records:
        counts.update(total=1, distinct=len(record.candidates), failed=not record.candidates)
        counts.update(record.counts)
    reasons = {"turns too long for the context": counts["too_long"]}
    reasons["turns with empty samples alone"] = counts["failed"] - counts["too_long"]
    return dict(counts) | {"reasons": {reason: number for reason, number in reasons.items() if number}}
