"""STAGE pairs: the best and the worst rewrite of a turn become a preference pair; small gaps are dropped.

    python -m scoring.pairs --config configs/quickstart.yaml

Reads the turns, `<run>/candidates` and `<run>/scores`; writes `<run>/pairs` as a TRL preference data set:
`load_dataset("json", data_files="<run>/pairs/part-0.jsonl")`.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from core.artifacts import Stage, completed
from core.cli import read_settings, run_command
from core.errors import InputError
from core.records import Candidate, Pair, Turn
from core.runtime import log, process, set_up_logging, wait_for_all
from core.settings import Settings
from rewriter.conversations import turns_hash, turns_of
from rewriter.prompts import RewritePrompt, normalised

NAME = "pairs"


@dataclass(frozen=True)
class Scored:
    """A turn with its candidates and their scores (None: not scored)."""

    turn: Turn
    candidates: tuple[Candidate, ...]
    scores: tuple[float | None, ...]


def best_and_worst(scored: Scored) -> tuple[int, int] | str:
    """Positions of the highest- and the lowest-scoring candidate, or the reason why there is no pair.

    Among equal scores the candidate that the model is most likely to say comes first: it was sampled most often, or
    has the highest log-probability. Pushing up, or down, what is rarely said teaches little.
    """
    known = [i for i, score in enumerate(scored.scores) if score is not None]
    if len(known) < 2:
        return "fewer than two scored candidates"

    def said(i: int) -> tuple[int, float]:
        logprob = scored.candidates[i].logprob
        return scored.candidates[i].count, -math.inf if logprob is None else logprob

    best = max(known, key=lambda i: (scored.scores[i], *said(i)))
    worst = max(known, key=lambda i: (-scored.scores[i], *said(i)))
    if scored.scores[best] == scored.scores[worst]:
        return "tie"
    if normalised(scored.candidates[best].text) == normalised(scored.candidates[worst].text):
        return "same text"
    return best, worst


def select_pairs(
    scored: Sequence[Scored],
    drop_fraction: float = 0.5,
    min_gap: float = 0.0,
    reward: str = "key_entropy",
    prompt: RewritePrompt = RewritePrompt(),  # noqa: B008 (frozen)
) -> tuple[list[Pair], Counter]:
    """Preference pairs of many turns, filtered by gap.

    Args:
        scored: turns with candidates and scores.
        drop_fraction: share of the pairs dropped, smallest gaps first (rounded down), from 0 to 1.
        min_gap: then pairs with a smaller gap are dropped; 0 keeps all.
        reward: name written into the pairs.
        prompt: how a rewrite is asked for.

    Returns:
        The pairs that are kept, in the order of the turns, and how many turns gave none, by reason.
    """
    pairs, dropped = [], Counter()
    for one in scored:
        found = best_and_worst(one)
        if isinstance(found, str):
            dropped[found] += 1
            continue
        best, worst = found
        high, low = one.scores[best], one.scores[worst]
        pairs.append(
            Pair(
                id=one.turn.id,
                prompt=prompt.messages(one.turn.history, one.turn.question),
                chosen=[{"role": "assistant", "content": one.candidates[best].text}],
                rejected=[{"role": "assistant", "content": one.candidates[worst].text}],
                score_chosen=high,
                score_rejected=low,
                gap=high - low,
                reward=reward,
            )
        )
    smallest = sorted(pairs, key=lambda pair: (pair.gap, pair.id))[: math.floor(drop_fraction * len(pairs))]
    gone = {pair.id for pair in smallest}
    dropped["among the smallest gaps"] += len(gone)
    below = {pair.id for pair in pairs if pair.id not in gone and pair.gap < min_gap}
    dropped["gap below min_gap"] += len(below)
    return [pair for pair in pairs if pair.id not in gone | below], +dropped


def pairs_stage(settings: Settings) -> Stage:
    """The stage's folder with what decides its content."""
    decided = asdict(settings.pairs) | asdict(RewritePrompt.of(settings.rewriter))
    del decided["on_policy"]  # of DPO alone
    train = turns_hash(settings, "train")
    completed(settings.run_dir / "candidates").expect(inputs={"train": train}, settings={"limit": settings.run.limit})
    inputs = {"scores": completed(settings.run_dir / "scores").identity(), "train": train}
    return Stage(settings.run_dir / NAME, decided, inputs, process()[0])


def read_scored(settings: Settings) -> list[Scored]:
    """Turns with candidates and scores, in the order of the turns file."""
    candidates = {r["id"]: r["candidates"] for r in completed(settings.run_dir / "candidates").records()}
    scores = {
        record["id"]: [record["lists"][i]["value"] for i in record["list_of"]]
        for record in completed(settings.run_dir / "scores").records()
    }
    return [
        Scored(turn, tuple(Candidate(**c) for c in candidates[turn.id]), tuple(scores[turn.id]))
        for turn in turns_of(settings, "train", settings.run.limit)
    ]


def make_pairs(settings: Settings) -> Stage:
    """Bring the stage to its end.

    Raises:
        InputError: no pair is left; says why and what to change.
    """
    stage = pairs_stage(settings)
    complete = stage.complete
    wait_for_all()  # rank 0 does not complete the stage before every process has looked
    if complete:
        log.info("pairs: complete, nothing to do (%s)", stage.folder)
        return stage
    if process()[0] == 0:
        scored = read_scored(settings)
        reward = settings.scoring.reward
        chosen = settings.pairs
        pairs, dropped = select_pairs(
            scored, chosen.drop_fraction, chosen.min_gap, reward, RewritePrompt.of(settings.rewriter)
        )
        if not pairs:
            raise InputError(no_pairs(len(scored), dropped))
        for part in stage.parts:
            part.unlink()
        stage.append(asdict(pair) for pair in pairs)
        stage.finish({"total": len(scored), "kept": len(pairs), "dropped": dict(dropped)})
        reasons = ", ".join(f"{number} {reason}" for reason, number in dropped.items())
        log.info(
            "pairs: kept %d of %d turns (%s) -> %s", len(pairs), len(scored), reasons or "none dropped", stage.folder
        )
    wait_for_all()
    return stage


def no_pairs(turns: int, dropped: Counter) -> str:
    """The error message when every pair was filtered out."""
    cures = {
        "fewer than two scored candidates": "raise `rewriter.n` or `rewriter.temperature`, or see the scores' errors",
        "tie": "raise `rewriter.n` or `rewriter.temperature`: the candidates retrieve the same documents",
        "same text": "raise `rewriter.n` or `rewriter.temperature`",
        "among the smallest gaps": "lower `pairs.drop_fraction`",
        "gap below min_gap": "lower `pairs.min_gap`",
    }
    most = max(dropped, key=lambda reason: dropped[reason])
    reasons = ", ".join(f"{number} {reason}" for reason, number in dropped.items())
    return f"no preference pair is left of {turns} turns ({reasons}); {cures[most]}."


def main() -> None:
    settings = read_settings(__doc__, alone=NAME)
    set_up_logging()
    make_pairs(settings)


if __name__ == "__main__":
    run_command(main)
