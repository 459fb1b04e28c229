"""UDCG: relevant passages that help, less distracting ones that mislead.

Source: "Redefining Retrieval Evaluation in the Era of LLMs", arXiv 2510.21440, and its published code. Needs relevance
labels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from core.records import GenerationInput, Score
from core.scoring_settings import RewardSettings
from scoring.batch import DOCUMENT_TOO_LONG, NO_LABELS, Batch
from scoring.prompts import ABSTAIN

if TYPE_CHECKING:
    from scoring.generator import Generator

REFUSAL = "NO-RESPONSE"


def udcg(
    no_res: Sequence[float],
    relevant: Sequence[bool],
    relevant_weight: float = 1.0,
    irrelevant_weight: float = -0.333,
    normalise: str = "all",
) -> float:
    """UDCG of a passage list: `sigmoid(mean_j w_j * (1 - no_res_j))`.

    Args:
        no_res: probability that the generator abstains, given each passage alone, in [0, 1].
        relevant: whether each passage holds the answer.
        relevant_weight: weight of relevant passages.
        irrelevant_weight: weight of the others; the published code's default, which its published values need to the
            last digit, is -0.333 and not -1/3.
        normalise: `all` divides by the number of passages, as the published code; `per_class` adds the mean over the
            relevant and the mean over the others, as its readme says.

    Returns:
        From 0.417 to 0.731 with the default weights.

    Raises:
        ValueError: there is no passage.
    """
    if not no_res:
        raise ValueError("UDCG needs at least one passage.")
    parts: dict[bool, list[float]] = {True: [], False: []}
    for probability, is_relevant in zip(no_res, relevant, strict=True):
        weight = relevant_weight if is_relevant else irrelevant_weight
        parts[bool(is_relevant)].append(weight * (1 - probability))
    if normalise == "per_class":
        total = sum(math.fsum(part) / len(part) for part in parts.values() if part)
    else:
        total = math.fsum(parts[True] + parts[False]) / len(no_res)
    return 1 / (1 + math.exp(min(-total, 700)))  # exp of more overflows


def abstention_probabilities(
    generator: Generator, inputs: Sequence[GenerationInput], abstention: str = "first_token"
) -> list[float | None]:
    """How likely the generator is to abstain from each input, which holds one passage.

    Args:
        generator: the model.
        inputs: a question with one passage each; duplicates are read once.
        abstention: `first_token`: the probability of the first token of "NO-RESPONSE", as in the published code;
            `sequence`: of all of them.

    Returns:
        Probabilities from 0 to 1, in order; None where the passage does not fit the context.
    """
    refusal = generator.reply_ids(REFUSAL)
    if abstention == "first_token":
        refusal = refusal[:1]
    outputs = generator.score([(each, refusal) for each in inputs], len(refusal), ABSTAIN)
    return [None if output is None else math.exp(math.fsum(output.logprobs)) for output in outputs]


def score_of(no_res: Sequence[float], relevant: Sequence[bool], rule: RewardSettings) -> Score:
    """The score record of one passage list."""
    value = udcg(no_res, relevant, rule.relevant_weight, rule.irrelevant_weight, rule.normalise)
    return Score(value, no_res=tuple(no_res))


def scores(batch: Batch) -> list[Score]:
    """The reward of each list."""
    rule = batch.scorer.rule
    single = [each for item in batch.items for each in item.generation_input.single_documents]
    probabilities = iter(abstention_probabilities(batch.scorer.generator, single, rule.abstention))
    results = []
    for item in batch.items:
        no_res = [next(probabilities) for _ in item.generation_input.documents]
        if item.relevant is None:
            results.append(Score(error=NO_LABELS))
        elif None in no_res:
            results.append(Score(error=DOCUMENT_TOO_LONG))
        else:
            results.append(score_of(no_res, item.relevant, rule))
    return results
