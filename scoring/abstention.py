"""How likely the generator is to abstain from one document: what UDCG is made of."""

import math
from collections.abc import Sequence

from core.language_model import LanguageModel, batches_by_tokens, chat_ids, fitting, score_continuations
from scoring.generator import Reading, prompt_of
from scoring.prompts import ABSTAIN, answer_messages

REFUSAL = "NO-RESPONSE"


def refusal_ids(lm: LanguageModel) -> list[int]:
    """The tokens of "NO-RESPONSE" as the model's template places them at the start of a reply."""
    messages = fitting(lm.tokenizer, answer_messages([], "?", [], ABSTAIN))
    prompt = chat_ids(lm.tokenizer, answer_messages([], "?", [], ABSTAIN))
    reply = [*messages, {"role": "assistant", "content": REFUSAL}]
    ids = lm.tokenizer.apply_chat_template(reply, return_dict=False)[len(prompt) :]
    while ids and REFUSAL in lm.tokenizer.decode(ids[:-1]):
        ids = ids[:-1]
    return ids


def no_res_probs(
    lm: LanguageModel, readings: Sequence[Reading], batch_tokens: int, abstention: str = "first_token"
) -> list[float]:
    """How likely the generator is to abstain from each reading, which holds one passage.

    Args:
        lm: the generator.
        readings: a question with one passage each; duplicates cost nothing.
        batch_tokens: tokens per batch.
        abstention: `first_token`: the probability of the first token of "NO-RESPONSE", as the published code;
            `sequence`: of all of them.

    Returns:
        Probabilities from 0 to 1, in order.
    """
    refusal = refusal_ids(lm)
    if abstention == "first_token":
        refusal = refusal[:1]
    distinct = list(dict.fromkeys(readings))
    prompts = [prompt_of(lm, reading, len(refusal), ABSTAIN)[0] for reading in distinct]
    found = {}
    for batch in batches_by_tokens([len(prompt) + len(refusal) for prompt in prompts], batch_tokens):
        outputs = score_continuations(lm, [prompts[i] for i in batch], [refusal] * len(batch))
        for i, output in zip(batch, outputs, strict=True):
            found[distinct[i]] = math.exp(math.fsum(output.logprobs))
    return [found[reading] for reading in readings]
