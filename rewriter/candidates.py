"""STAGE candidates: sample several rewrites of every training turn."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from core.language_model import check_room
from core.model_spec import ModelSpec
from core.records import Turn, TurnRecord
from core.settings import RewriterSettings, RunSettings
from core.stage_runner import run_stage
from core.stages import Stage
from rewriter.conversations import TurnSet
from rewriter.prompts import RewritePrompt
from rewriter.rewriter import server_backend
from rewriter.sampling import sample_rewrites, turn_record

if TYPE_CHECKING:
    from rewriter.server_backend import ServerBackend

BATCH_SIZE = 16  # turns that are sampled and saved together
BATCHES_IN_FLIGHT = 4  # batches of `rewriter.concurrency` requests; fewer turns wait for the slowest one
LOCAL = ("model", "adapter", "batch_tokens", "quantization", "device_map")  # `model.fingerprint` covers these
SERVER = ("url", "served_model", "concurrency", "retries", "timeout")
REASONS = {"too_long": "turns too long for the context", "refused": "turns that the server refused"}


def make_candidates(
    run: RunSettings, name: str, turns: TurnSet, model: ModelSpec | None, options: RewriterSettings
) -> Stage:
    """Run the stage: sample from `model`, or, if it is None, from the model on the server of `options`."""
    settings = asdict(options) | {"seed": run.seed}
    for other in (*LOCAL, *SERVER, "extra_body" if model else "dtype"):
        del settings[other]
    inputs = {"turns": turns.fingerprint, "model": model.fingerprint if model else options.server}
    stage = Stage(run.path, name, settings, inputs, TurnRecord)

    def load_worker():
        if model is None:
            return partial(sample_from_server, server_backend(options), options=options, seed=run.seed)
        lm = model.load()
        check_room(lm, options.max_new_tokens, "rewriter.max_new_tokens")
        prompt = RewritePrompt.of(options, examples=True)

        def sample(batch: list[Turn]) -> list[TurnRecord]:
            records = sample_rewrites(lm, batch, options, prompt, run.seed)
            stage.batch_limit = lm.batch_limit
            return records

        return sample

    batch_size = BATCH_SIZE if model else BATCHES_IN_FLIGHT * options.concurrency
    return run_stage(stage, turns, batch_size, load_worker, summarize, run.max_failed_fraction)


def sample_from_server(
    server: "ServerBackend", turns: Sequence[Turn], options: RewriterSettings, seed: int
) -> Iterator[TurnRecord]:
    """`sample_rewrites` on a server; yields each record as soon as it and all records before it are complete."""
    prompt = RewritePrompt.of(options, examples=True)
    for turn, samples in zip(turns, server.sample(turns, prompt, options.n, seed), strict=True):
        yield turn_record(turn, samples, options, Counter(refused=not samples))


def summarize(records: Iterable[TurnRecord]) -> dict[str, Any]:
    """Totals; a turn without any candidate is a failure."""
    counts: Counter = Counter()
    reasons: Counter = Counter()
    for record in records:
        counts.update(total=1, distinct=len(record.candidates), failed=not record.candidates)
        counts.update(record.counts)
        if not record.candidates:
            causes = [reason for name, reason in REASONS.items() if name in record.counts]
            reasons.update(causes or ["turns with only empty samples"])
    return dict(counts) | {"reasons": dict(reasons)}
