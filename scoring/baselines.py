"""Rewards that others train on, for comparison. They need labels.

`reciprocal_rank` as in RetPO (arXiv 2402.11827), `answer_logprob` as in AdaQR (arXiv 2406.10991).
"""

import math
from collections.abc import Sequence


def reciprocal_rank(relevant: Sequence[bool]) -> float:
    """1 / rank of the first relevant document; 0 when none is.

    Args:
        relevant: for each document in rank order, whether it is relevant.
    """
    return next((1 / rank for rank, hit in enumerate(relevant, 1) if hit), 0.0)


def answer_logprob(scores: Sequence[float], logprobs: Sequence[float]) -> float:
    """Log-probability of an answer, the documents weighted by the retriever: `log sum_d P(d) P(a | q, d)`.

    Args:
        scores: the retriever's score of each document; `P(d)` is their softmax.
        logprobs: log-probability of the answer, in nats, given each document alone.

    Returns:
        At most 0.

    Raises:
        ValueError: there is no document.
    """
    if not scores:
        raise ValueError("answer_logprob needs at least one document.")
    total = log_sum(scores)
    return log_sum([score - total + logprob for score, logprob in zip(scores, logprobs, strict=True)])


def log_sum(values: Sequence[float]) -> float:
    """log(sum(exp(values))), without overflow."""
    top = max(values)
    return top if math.isinf(top) else top + math.log(math.fsum(math.exp(value - top) for value in values))
