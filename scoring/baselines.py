"""Rewards of other methods, for comparison. They need labels.

`reciprocal_rank` follows RetPO (arXiv 2402.11827), `answer_logprob` AdaQR (arXiv 2406.10991).
"""

import math
from collections.abc import Sequence

from core.records import Score
from scoring.batch import NO_LABELS, NO_REFERENCES, REFERENCE_TOO_LONG, Batch


def reciprocal_rank(relevant: Sequence[bool]) -> float:
    """1 / rank of the first relevant document, given the relevance of each rank; 0 if no document is relevant."""
    return next((1 / rank for rank, hit in enumerate(relevant, 1) if hit), 0.0)


def reciprocal_rank_scores(batch: Batch) -> list[Score]:
    """Reciprocal rank of each list. Needs no generator."""
    return [
        Score(error=NO_LABELS) if item.relevant is None else Score(reciprocal_rank(item.relevant))
        for item in batch.items
    ]


def answer_logprob(scores: Sequence[float], logprobs: Sequence[float]) -> float:
    """Log-probability of an answer, with documents weighted by the retriever: `log sum_d P(d) P(a | q, d)`.

    Args:
        scores: the retriever's score of each document; `P(d)` is their softmax.
        logprobs: log-probability of the answer, in nats, given each document alone.

    Returns:
        At most 0.

    Raises:
        ValueError: there is no document.
    """
    total = log_sum(scores)
    return log_sum([score - total + logprob for score, logprob in zip(scores, logprobs, strict=True)])


def log_sum(values: Sequence[float]) -> float:
    """log(sum(exp(values))), without overflow."""
    top = max(values)
    return top if math.isinf(top) else top + math.log(math.fsum(math.exp(value - top) for value in values))


def answer_logprob_scores(batch: Batch) -> list[Score]:
    """`answer_logprob` of each list, for the reference answer where it is highest."""
    generator = batch.generator
    ids = {
        answer: generator.reply_ids(answer) for answer in {answer for item in batch.items for answer in item.answers}
    }
    tasks = [
        (document, ids[answer])
        for item in batch.items
        for document in item.generation_input.single_documents
        for answer in item.answers
    ]
    outputs = iter(generator.score(tasks, generator.max_new_tokens))
    results = []
    for item in batch.items:
        table = [[next(outputs) for _ in item.answers] for _ in item.generation_input.documents]
        if not item.answers:
            results.append(Score(error=NO_REFERENCES))
        elif any(None in row for row in table):
            results.append(Score(error=REFERENCE_TOO_LONG))
        else:
            by_answer = zip(*([math.fsum(output.logprobs) for output in row] for row in table), strict=True)
            values = [answer_logprob(item.scores or (0.0,) * len(table), logprobs) for logprobs in by_answer]
            results.append(Score(math.nan if any(map(math.isnan, values)) else max(values)))
    return results
