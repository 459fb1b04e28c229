"""GROGU utilities of a document list: how much it lowers the generator's uncertainty about its own answer.

Source: "Evaluating the Utility of Grounding Documents with Reference-Free LLM-based Metrics", arXiv 2601.23129. All
are pure functions of the token statistics with and without documents. Higher is better.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from core.records import Score, TokenStats
from core.scoring_settings import RewardSettings
from scoring.answers import abstains
from scoring.batch import NO_DOCUMENT_FITS, NOT_FINITE, Batch

REWARDS = ("key_entropy", "entropy", "key_ppl", "ppl")


def key_tokens(
    h0: Sequence[float],
    hd: Sequence[float],
    alpha: float = 0.05,
    fallback: float = 0.10,
    fallback_by: str = "ungrounded",
) -> tuple[list[int], str]:
    """Positions of the key tokens.

    Args:
        h0: [T] entropy without documents, in nats.
        hd: [T] entropy with documents.
        alpha: a token is key if |h0 - hd| > alpha, in nats.
        fallback: if no token is key, use the ceil(fallback * T) tokens with the highest entropy (of equal ones, the
            earlier).
        fallback_by: entropy for the fallback: `h0` (`ungrounded`) or `hd` (`grounded`). The paper does not specify
            it; the default is our choice.

    Returns:
        Positions in ascending order, and the rule that selected them: `alpha` or `fallback`.

    Example:
        >>> key_tokens([2.0, 1.0, 0.5], [0.5, 0.99, 0.9])
        ([0, 2], 'alpha')
    """
    key = [i for i, (without, with_) in enumerate(zip(h0, hd, strict=True)) if abs(without - with_) > alpha]
    if key:
        return key, "alpha"
    entropy = h0 if fallback_by == "ungrounded" else hd
    count = math.ceil(round(fallback * len(entropy), 9))
    order = sorted(range(len(entropy)), key=lambda i: (-entropy[i], i))
    return sorted(order[: max(count, 1)]), "fallback"


def utility(stats: TokenStats, reward: str, key: Sequence[int], log_ppl: bool = False) -> float:
    """Compute one of the four utilities.

    Args:
        stats: token statistics of one answer, T >= 1.
        reward: `key_entropy`, `entropy`: mean of h0 - hd over the key tokens or all tokens; `key_ppl`, `ppl`:
            perplexity of these tokens without documents minus perplexity with them.
        key: positions of the key tokens.
        log_ppl: for `key_ppl` and `ppl`, the difference of the mean negative log-likelihoods instead.
    """
    over = key if reward.startswith("key") else range(len(stats.h0))
    if reward.endswith("entropy"):
        return fmean(stats.h0[i] - stats.hd[i] for i in over)
    without, with_ = fmean(-stats.logp0[i] for i in over), fmean(-stats.logpd[i] for i in over)
    return without - with_ if log_ppl else math.exp(without) - math.exp(with_)


def score_of(stats: TokenStats, answer: str, reward: str, scoring: RewardSettings) -> Score:
    """Score one answer. An empty answer, or statistics that are not finite, give an error in place of a value."""
    if not stats.h0:
        return Score(None, answer, error="empty answer", stats=stats)
    if not all(map(math.isfinite, (*stats.h0, *stats.hd, *stats.logp0, *stats.logpd))):
        return Score(None, answer, error=NOT_FINITE)
    key, chosen_by = key_tokens(stats.h0, stats.hd, scoring.alpha, scoring.fallback, scoring.fallback_by)
    try:
        value = utility(stats, reward, key, scoring.log_ppl)
    except OverflowError:
        error = "the perplexity is too large for a float; use `scoring.log_ppl`"
        return Score(None, answer, error=error, rule=chosen_by, stats=stats)
    return Score(value, answer, rule=chosen_by, key=tuple(key), stats=stats)


def scores(reward: str, batch: Batch) -> list[Score]:
    """One of the rewards for each list. All four use the same answers."""
    results = []
    for item, (source, answer) in zip(batch.items, batch.answers, strict=True):
        if answer.cut == len(item.generation_input.documents):
            score = Score(answer=answer.answer, error=NO_DOCUMENT_FITS)
        else:
            score = score_of(answer.stats, answer.answer, reward, batch.scoring)
        abstaining = source == "generated" and abstains(answer.answer)
        results.append(replace(score, answer_source=source, abstains=abstaining, cut=answer.cut, ended=answer.ended))
    return results
