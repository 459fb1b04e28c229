"""UDCG: how much the relevant passages of a list help, less how much the distracting ones mislead.

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
    normalize: str = "all",
) -> float:
    """UDCG of a passage list: `sigmoid(mean_j w_j * (1 - no_res_j))`.

    Args:
        no_res: probability that the generator abstains, given each passage alone, in [0, 1].
        relevant: whether each passage contains the answer.
        relevant_weight: weight of relevant passages.
        irrelevant_weight: weight of the other passages. The default -0.333, not -1/3, reproduces the published code.
        normalize: `all` divides by the number of passages, as the published code does; `per_class` adds the mean over
            relevant passages and the mean over the others, as its readme says.

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
    if normalize == "per_class":
        total = sum(math.fsum(part) / len(part) for part in parts.values() if part)
    else:
        total = math.fsum(parts[True] + parts[False]) / len(no_res)
    return 1 / (1 + math.exp(min(-total, 700)))  # exp overflows above 709


def abstention_probabilities(
    generator: Generator, inputs: Sequence[GenerationInput], abstention: str = "first_token"
) -> list[float | None]:
    """Compute the probability that the generator abstains, for each input.

    Args:
        generator: the generator.
        inputs: questions with one passage each; duplicates are computed once.
        abstention: `first_token`: the probability of the first token of "NO-RESPONSE", as in the published code;
            `sequence`: the probability of all its tokens.

    Returns:
        Probabilities from 0 to 1, in order; None if the passage does not fit the context.
    """
    refusal = generator.reply_ids(REFUSAL)
    if abstention == "first_token":
        refusal = refusal[:1]
    outputs = generator.score([(item, refusal) for item in inputs], len(refusal), ABSTAIN)
    return [None if output is None else math.exp(math.fsum(output.logprobs)) for output in outputs]


def score_of(no_res: Sequence[float], relevant: Sequence[bool], scoring: RewardSettings) -> Score:
    """Score one passage list from its abstention probabilities."""
    value = udcg(no_res, relevant, scoring.relevant_weight, scoring.irrelevant_weight, scoring.normalize)
    return Score(value, no_res=tuple(no_res))


def scores(batch: Batch) -> list[Score]:
    """UDCG of each list."""
    single = [passage for item in batch.items for passage in item.generation_input.single_documents]
    probabilities = iter(abstention_probabilities(batch.generator, single, batch.scoring.abstention))
    results = []
    for item in batch.items:
        no_res = [next(probabilities) for _ in item.generation_input.documents]
        if item.relevant is None:
            results.append(Score(error=NO_LABELS))
        elif None in no_res:
            results.append(Score(error=DOCUMENT_TOO_LONG))
        else:
            results.append(score_of(no_res, item.relevant, batch.scoring))
    return results
