"""SePer: how much of the generator's belief lies on the reference answer; Delta-SePer: what the documents add to it.

Source: "SePer: Measure Retrieval Utility Through The Lens Of Semantic Perplexity Reduction", ICLR 2025, and its
published code. Needs reference answers, and an entailment model (`scoring.entailment`).
"""

import math
from collections.abc import Sequence

from core.records import SampledAnswer
from scoring.entailment import Entailment, NliResult


def belief(answers: Sequence[SampledAnswer]) -> list[float]:
    """`l_i`: the softmax of the answers' mean token log-probabilities; sums to 1."""
    top = max(answer.logprob for answer in answers)
    weights = [math.exp(answer.logprob - top) for answer in answers]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def soft(
    answers: Sequence[SampledAnswer],
    references: Sequence[str],
    question: str,
    entailment: Entailment,
    kernel: str = "bidirectional_max",
    aggregate: str = "max",
) -> float:
    """`SePer_S = sum_i l_i * k_i`, with `k_i` the entailment between answer i and the references.

    Args:
        answers: N samples.
        references: at least one.
        question: put before every text that is judged.
        entailment: the judge.
        kernel: `bidirectional_max`: the larger of P(answer entails reference) and P(reference entails answer);
            `response_entails`: the first alone.
        aggregate: over several references: `max` (published code) or `mean` (the paper's equation 10).

    Returns:
        From 0 to 1.
    """
    texts = [f"{question} {answer.text}" for answer in answers]
    reference_texts = [f"{question} {reference}" for reference in references]
    verdicts = entailment.judge([pair for a in texts for r in reference_texts for pair in ((a, r), (r, a))])
    forth_and_back = iter(zip(verdicts[::2], verdicts[1::2], strict=True))
    total = 0.0
    for weight in belief(answers):
        kernels = []
        for _ in reference_texts:
            forth, back = next(forth_and_back)
            kernels.append(forth.entails if kernel == "response_entails" else max(forth.entails, back.entails))
        total += weight * aggregate_values(kernels, aggregate)
    return total


def hard(
    answers: Sequence[SampledAnswer],
    references: Sequence[str],
    question: str,
    entailment: Entailment,
    aggregate: str = "max",
    loose: bool = False,
) -> float:
    """`SePer_H`: the belief on those clusters of answers that mean the same as a reference.

    Args:
        answers: N samples.
        references: at least one.
        question: put before every text that is judged.
        entailment: the judge.
        aggregate: over several references: `max` counts a cluster that matches any, `mean` the share that it matches.
        loose: how answers are clustered (`same`); a cluster and a reference are always compared by the loose rule, as
            published.

    Returns:
        From 0 to 1.
    """
    texts = [f"{question} {answer.text}" for answer in answers]
    reference_texts = [f"{question} {reference}" for reference in references]
    weights, total = belief(answers), 0.0
    for cluster in clusters(texts, entailment, loose):
        head = texts[cluster[0]]
        verdicts = entailment.judge(
            [pair for reference in reference_texts for pair in ((head, reference), (reference, head))]
        )
        matches = [float(same(*both, loose=True)) for both in zip(verdicts[::2], verdicts[1::2], strict=True)]
        total += aggregate_values(matches, aggregate) * math.fsum(weights[i] for i in cluster)
    return total


def clusters(texts: Sequence[str], entailment: Entailment, loose: bool = False) -> list[list[int]]:
    """Positions of the texts grouped by meaning: the first that is not in a group opens one, and takes all like it."""
    verdicts = iter(entailment.judge([(a, b) for a in texts for b in texts]))
    table = [[next(verdicts) for _ in texts] for _ in texts]
    remaining, groups = list(range(len(texts))), []
    while remaining:
        first = remaining[0]
        groups.append([i for i in remaining if i == first or same(table[first][i], table[i][first], loose)])
        remaining = [i for i in remaining if i not in groups[-1]]
    return groups


def same(forth: NliResult, back: NliResult, loose: bool) -> bool:
    """Whether two texts mean the same: each entails the other; loosely: no contradiction, and not both neutral."""
    labels = (forth.label, back.label)
    if loose:
        return "contradiction" not in labels and labels != ("neutral", "neutral")
    return labels == ("entailment", "entailment")


def aggregate_values(values: Sequence[float], aggregate: str) -> float:
    return max(values) if aggregate == "max" else math.fsum(values) / len(values)
