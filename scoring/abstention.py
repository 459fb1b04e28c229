"""How likely the generator is to abstain from one document: what UDCG is made of."""

import math
from collections.abc import Sequence

from core.batches import each_batch
from core.beginnings import alike
from core.chat import reply_ids
from core.decoding import score_continuations
from core.language_model import LanguageModel
from scoring.generator import Reading, prompts_of
from scoring.prompts import ABSTAIN

REFUSAL = "NO-RESPONSE"


def no_res_probs(
    lm: LanguageModel, readings: Sequence[Reading], batch_tokens: int, abstention: str = "first_token"
) -> list[float | None]:
    """How likely the generator is to abstain from each reading, which holds one passage.

    Args:
        lm: the generator.
        readings: a question with one passage each; duplicates cost nothing.
        batch_tokens: tokens per batch.
        abstention: `first_token`: the probability of the first token of "NO-RESPONSE", as the published code;
            `sequence`: of all of them.

    Returns:
        Probabilities from 0 to 1, in order; None where the passage does not fit the context.
    """
    refusal = reply_ids(lm, REFUSAL)
    if abstention == "first_token":
        refusal = refusal[:1]
    distinct = list(dict.fromkeys(readings))
    made = prompts_of(lm, distinct, len(refusal), ABSTAIN)
    whole = [i for i, (_, cut) in enumerate(made) if not cut]
    prompts = [made[i][0] for i in whole]
    found: list[float | None] = [None] * len(distinct)

    def read(batch: list[int]) -> None:
        outputs = score_continuations(lm, [prompts[i] for i in batch], [[refusal]] * len(batch))
        for i, (output,) in zip(batch, outputs, strict=True):
            found[whole[i]] = math.exp(math.fsum(output.logprobs))

    each_batch(lm, [len(prompt) + len(refusal) for prompt in prompts], batch_tokens, read, alike(prompts))
    known = dict(zip(distinct, found, strict=True))
    return [known[reading] for reading in readings]
