"""SePer: the generator's belief in the reference answer. Delta-SePer: the change in SePer that the documents bring.

Source: "SePer: Measure Retrieval Utility Through The Lens Of Semantic Perplexity Reduction", ICLR 2025, and its
published code. Needs reference answers, and an entailment model (`scoring.entailment`).
"""

import math
from collections.abc import Callable, Sequence

from core.records import SampledAnswer, Score
from scoring.batch import NO_DOCUMENT_FITS, NO_REFERENCES, Batch, Entailment, NliResult


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
        question: prefix of every text that is compared.
        entailment: the entailment classifier.
        kernel: `bidirectional_max`: the larger of P(answer entails reference) and P(reference entails answer);
            `response_entails`: P(answer entails reference) alone.
        aggregate: how several references are combined: `max` (published code) or `mean` (the paper's equation 10).

    Returns:
        From 0 to 1.
    """
    pairs = [(f"{question} {answer.text}", f"{question} {text}") for answer in answers for text in references]
    kernels = [
        forth.entails if kernel == "response_entails" else max(forth.entails, back.entails)
        for forth, back in judge_both_ways(pairs, entailment)
    ]
    total, count = 0.0, len(references)
    for i, weight in enumerate(belief(answers)):
        total += weight * aggregate_values(kernels[i * count : (i + 1) * count], aggregate)
    return total


def hard(
    answers: Sequence[SampledAnswer],
    references: Sequence[str],
    question: str,
    entailment: Entailment,
    aggregate: str = "max",
    loose: bool = False,
) -> float:
    """`SePer_H`: the belief in those clusters of answers that mean the same as a reference.

    Args:
        answers: N samples.
        references: at least one.
        question: prefix of every text that is compared.
        entailment: the entailment classifier.
        aggregate: how several references are combined: `max` counts a cluster that matches any of them, `mean`
            weights it by the share of references that it matches.
        loose: rule for clustering answers, see `same`. A cluster is always compared with a reference by the loose
            rule, as in the published code.

    Returns:
        From 0 to 1.
    """
    texts = [f"{question} {answer.text}" for answer in answers]
    weights, total = belief(answers), 0.0
    for cluster in clusters(texts, entailment, loose):
        pairs = [(texts[cluster[0]], f"{question} {reference}") for reference in references]
        matches = [float(same(*both, loose=True)) for both in judge_both_ways(pairs, entailment)]
        total += aggregate_values(matches, aggregate) * math.fsum(weights[i] for i in cluster)
    return total


def judge_both_ways(pairs: Sequence[tuple[str, str]], entailment: Entailment) -> list[tuple[NliResult, NliResult]]:
    """For each pair (a, b), the results for "a entails b" and "b entails a"."""
    verdicts = entailment.judge([pair for a, b in pairs for pair in ((a, b), (b, a))])
    return list(zip(verdicts[::2], verdicts[1::2], strict=True))


def clusters(texts: Sequence[str], entailment: Entailment, loose: bool = False) -> list[list[int]]:
    """Positions of the texts, grouped by meaning: the first ungrouped text starts a group and takes all like it."""
    verdicts = iter(entailment.judge([(a, b) for a in texts for b in texts]))
    table = [[next(verdicts) for _ in texts] for _ in texts]
    remaining, groups = list(range(len(texts))), []
    while remaining:
        first = remaining[0]
        groups.append([i for i in remaining if i == first or same(table[first][i], table[i][first], loose)])
        remaining = [i for i in remaining if i not in groups[-1]]
    return groups


def same(forth: NliResult, back: NliResult, loose: bool) -> bool:
    """Whether two texts mean the same: each entails the other or, if loose, neither contradicts the other and at least
    one direction is not neutral."""
    labels = (forth.label, back.label)
    if loose:
        return "contradiction" not in labels and labels != ("neutral", "neutral")
    return labels == ("entailment", "entailment")


def aggregate_values(values: Sequence[float], aggregate: str) -> float:
    return max(values) if aggregate == "max" else math.fsum(values) / len(values)


def soft_scores(batch: Batch) -> list[Score]:
    """Delta-SePer of each list, computed with `soft`."""
    return delta_scores(batch, soft, kernel=batch.scoring.kernel)


def hard_scores(batch: Batch) -> list[Score]:
    """Delta-SePer of each list, computed with `hard`."""
    return delta_scores(batch, hard, loose=batch.scoring.clusters == "loose")


def delta_scores(batch: Batch, measure: Callable[..., float], **options) -> list[Score]:
    """SePer with documents minus SePer without them, for each list."""
    results = []
    for item in batch.items:
        if not item.answers:
            results.append(Score(error=NO_REFERENCES))
            continue
        answers, cut = batch.samples[item.generation_input]
        if cut == len(item.generation_input.documents):
            results.append(Score(error=NO_DOCUMENT_FITS))
            continue
        without_documents, _ = batch.samples[item.generation_input.without_documents]
        with_documents, without = (
            measure(
                sampled, item.answers, item.generation_input.question, batch.entailment,
                aggregate=batch.scoring.aggregate, **options,
            )
            for sampled in (answers, without_documents)
        )  # fmt: skip
        likeliest = max(answers, key=lambda answer: answer.logprob)
        results.append(Score(with_documents - without, likeliest.text, cut=cut))
    return results
