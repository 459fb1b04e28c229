"""STAGE pairs: the best and the worst rewrite of a turn become a preference pair; pairs with small gaps are dropped.

The records are a TRL preference data set: `load_dataset("json", data_files="RUN/round-1/pairs/records.jsonl")`.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from statistics import fmean

from core.distributed import process, wait_for_all
from core.errors import InputError
from core.progress import log
from core.records import Candidate, Pair, Turn, TurnRecord
from core.settings import PairSettings
from core.stages import Stage
from rewriter.prompts import RewritePrompt, normalized
from train.run import Run

UNPAIRED = {  # reason why a turn has no pair -> remedy
    "fewer than two scored candidates": "raise `rewriter.n` or `rewriter.temperature`, or check the errors in scores",
    "equal scores": "raise `rewriter.n` or `rewriter.temperature`: the candidates retrieve the same documents",
    "same text": "raise `rewriter.n` or `rewriter.temperature`",
}
FILTERED = {  # reason why a pair is dropped -> remedy
    "among the smallest gaps": "lower `pairs.drop_fraction`",
    "gap below min_gap": "lower `pairs.min_gap`",
}


def best_and_worst(candidates: Iterable[Candidate]) -> tuple[Candidate, Candidate] | str:
    """Select the candidates with the highest and the lowest score, or return the reason why a turn has no pair.

    Of candidates with equal scores, it selects the one that the model is most likely to produce: the most often
    sampled, then the one with the highest log-probability. The model learns little from pairs of unlikely texts.
    """
    scored = [candidate for candidate in candidates if candidate.score is not None]
    if len(scored) < 2:
        return "fewer than two scored candidates"

    def likelihood(candidate: Candidate) -> tuple[int, float]:
        return candidate.count, -math.inf if candidate.logprob is None else candidate.logprob

    best = max(scored, key=lambda c: (c.score, *likelihood(c)))
    worst = max(scored, key=lambda c: (-c.score, *likelihood(c)))
    if best.score == worst.score:
        return "equal scores"
    if normalized(best.text) == normalized(worst.text):
        return "same text"
    return best, worst


def select_pairs(
    scored: Iterable[tuple[Turn, TurnRecord]], options: PairSettings, reward: str, prompt: RewritePrompt
) -> tuple[list[Pair], Counter]:
    """Build preference pairs from scored turns, and filter them by gap: first `drop_fraction`, rounded down, then
    `min_gap`. The name of the reward is written into the pairs.

    Returns:
        The remaining pairs, in the order of the turns, and the number of turns without a pair, by reason.
    """
    pairs, dropped = [], Counter()
    for turn, record in scored:
        chosen = best_and_worst(record.candidates)
        if isinstance(chosen, str):
            dropped[chosen] += 1
            continue
        best, worst = chosen
        asked = prompt.messages(turn.history, turn.question)
        sides = [[{"role": "assistant", "content": candidate.text}] for candidate in chosen]
        pairs.append(Pair(turn.id, asked, *sides, best.score, worst.score, best.score - worst.score, reward))
    smallest = sorted(pairs, key=lambda pair: (pair.gap, pair.id))[: math.floor(options.drop_fraction * len(pairs))]
    small = {pair.id for pair in smallest}
    below = {pair.id for pair in pairs if pair.id not in small and pair.gap < options.min_gap}
    dropped.update({"among the smallest gaps": len(small), "gap below min_gap": len(below)})
    return [pair for pair in pairs if pair.id not in small | below], +dropped


def make_pairs(run: Run, name: str, scores: Stage) -> Stage:
    """Run the stage.

    Raises:
        InputError: no pair is left; names the reasons and the settings to change.
    """
    turns, options, prompt = run.train_turns, run.settings.pairs, RewritePrompt.of(run.settings.rewriter)
    inputs = {"scores": scores.identity, "turns": turns.fingerprint}
    stage = Stage(run.path, name, asdict(options) | asdict(prompt), inputs, Pair)
    if process()[0] == 0 and stage.complete:
        stage.check_files()
        log.info("%s: complete, nothing to do (%s)", name, stage.folder)
    elif process()[0] == 0:
        scored = ((turns.by_id[record.id], record) for record in scores)
        pairs, dropped = select_pairs(scored, options, run.settings.scoring.reward, prompt)
        reasons = ", ".join(f"{number} {reason}" for reason, number in dropped.items())
        if not pairs:
            most_common = dropped.most_common(1)[0][0]
            remedy = (UNPAIRED | FILTERED)[most_common]
            raise InputError(f"no preference pair is left of {len(turns)} turns ({reasons}); {remedy}.")
        stage.write(pairs)
        mean_gap = fmean(pair.gap for pair in pairs)
        stage.finish({"total": len(pairs), "turns": len(turns), "dropped": dict(dropped), "mean_gap": mean_gap})
        reasons = reasons or "none dropped"
        log.info("%s: kept %d of %d turns (%s) -> %s", name, len(pairs), len(turns), reasons, stage.folder)
    wait_for_all()
    return stage
