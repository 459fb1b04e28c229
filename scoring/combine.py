"""Combine the rewards of a document list into one score."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, pstdev

from core.records import Score
from core.scoring_settings import ScoringSettings


def combine(scores: Sequence[dict[str, Score]], scoring: ScoringSettings) -> list[Score]:
    """Combine rewards into one score for each document list of a turn.

    Args:
        scores: for each list, reward -> score.
        scoring: the reward; if it is `weighted`, also the weights.

    Returns:
        For each list the score of the single reward. With `weighted`, the value is the weighted sum of the rewards'
        z-scores over the turn, and None if a reward has no value.
    """
    if scoring.reward != "weighted":
        return [by_reward[scoring.reward] for by_reward in scores]
    columns = [z_scores([by_reward[name].value for by_reward in scores]) for name in scoring.weights]
    combined = []
    for by_reward, row in zip(scores, zip(*columns, strict=True), strict=True):
        value = None if None in row else math.fsum(map(math.prod, zip(scoring.weights.values(), row, strict=True)))
        error = next((score.error for score in by_reward.values() if score.error), None)
        parts = {name: score.value for name, score in by_reward.items()}
        first = next(iter(by_reward.values()))  # its answer and token statistics stay in the record
        combined.append(replace(first, value=value, parts=parts, error=error))
    return combined


def z_scores(values: Sequence[float | None]) -> list[float | None]:
    """Standardize values to mean 0 and standard deviation 1; equal values become 0. None stays None."""
    present = [value for value in values if value is not None]
    if not present:
        return list(values)
    mean, deviation = fmean(present), pstdev(present)
    return [None if value is None else (value - mean) / deviation if deviation else 0.0 for value in values]
