"""How likely the generator is to abstain when it sees one document: what UDCG is made of."""

import math
from collections.abc import Sequence

from core.chat import completion_ids
from core.records import GenerationInput
from scoring.generator import Generator
from scoring.prompts import ABSTAIN

REFUSAL = "NO-RESPONSE"


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
    refusal = tuple(completion_ids(generator.lm, REFUSAL))
    if abstention == "first_token":
        refusal = refusal[:1]
    outputs = generator.score([(each, refusal) for each in inputs], len(refusal), ABSTAIN)
    return [None if output is None else math.exp(math.fsum(output.logprobs)) for output in outputs]
