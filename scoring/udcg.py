"""UDCG: relevant passages that help, less distracting ones that mislead.

Source: "Redefining Retrieval Evaluation in the Era of LLMs", arXiv 2510.21440, and its published code. Needs relevance
labels.
"""

import math
from collections.abc import Sequence


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
