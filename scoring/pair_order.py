"""Does a reward order the candidates of a turn as their retrieval does? Read from the records of a run, without a
model.

`python -m scoring.validity --config C --run RUN` prints, for each reward, the share of candidate pairs of one turn that
it orders as their reciprocal ranks do, and the mean reciprocal rank of the candidates with the highest and the lowest
score.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

from core.artifacts import completed
from core.records import TokenStats
from core.settings import ScoringSettings
from scoring import grogu


@dataclass(frozen=True)
class ScoredCandidates:
    """The candidates of one turn: their scores by one reward (None: no score), and their reciprocal ranks."""

    scores: tuple[float | None, ...]
    reciprocal_ranks: tuple[float, ...]


def pair_order(turns: Sequence[ScoredCandidates]) -> dict[str, float | int | None]:
    """How well scores order candidates.

    Args:
        turns: candidates without a score are left out.

    Returns:
        `pairs`: number of candidate pairs of one turn with different reciprocal ranks; `share`: of them that the
        scores order alike, ties of the scores counted half; `best`, `worst` and `mean`: mean reciprocal rank over
        turns of the candidate with the highest score, with the lowest, and of all (candidates with equal scores
        count by their mean). None where there is nothing to count.

    Example:
        >>> pair_order([ScoredCandidates((3.0, 1.0, 1.0), (0.5, 1.0, 0.0))])["share"]  # wrong, right, tie
        0.5
    """
    points: list[float] = []
    best, worst, mean = [], [], []
    for turn in turns:
        known = [(s, r) for s, r in zip(turn.scores, turn.reciprocal_ranks, strict=True) if s is not None]
        if not known:
            continue
        for (score, rank), (other_score, other_rank) in combinations(known, 2):
            if rank != other_rank:
                points.append(0.5 if score == other_score else float((score > other_score) == (rank > other_rank)))
        highest, lowest = max(s for s, _ in known), min(s for s, _ in known)
        best.append(fmean(r for s, r in known if s == highest))
        worst.append(fmean(r for s, r in known if s == lowest))
        mean.append(fmean(r for _, r in known))
    return {
        "pairs": len(points),
        "share": fmean(points) if points else None,
        "best": fmean(best) if best else None,
        "worst": fmean(worst) if worst else None,
        "mean": fmean(mean) if mean else None,
    }


def scores_of_run(run: Path, rule: ScoringSettings) -> Iterator[tuple[str, dict[str, list[float | None]]]]:
    """For each turn of a run, reward -> the score of each candidate: the run's own reward, and every GROGU reward
    where the records hold token statistics.

    Args:
        run: folder with the stages `candidates` to `scores`.
        rule: the run's `scoring` settings.

    Raises:
        InputError: a stage is missing or not complete.
    """
    for record in completed(run / "scores").records():
        lists = {rule.reward: [scored["value"] for scored in record["lists"]]}
        if all(scored.get("stats") or scored.get("error") for scored in record["lists"]):
            for reward in grogu.REWARDS:
                lists[reward] = [grogu_value(scored, reward, rule) for scored in record["lists"]]
        yield record["id"], {reward: [values[i] for i in record["list_of"]] for reward, values in lists.items()}


def grogu_value(scored: dict[str, Any], reward: str, rule: ScoringSettings) -> float | None:
    """A GROGU reward of a record's token statistics."""
    if scored.get("error") or not scored.get("stats"):
        return None
    stats = TokenStats(**{name: tuple(values) for name, values in scored["stats"].items()})
    return grogu.score_of(stats, "", reward, rule.alpha, rule.fallback, rule.fallback_by, rule.log_ppl).value
