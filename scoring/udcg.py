"""UDCG: relevant passages that help, less distracting ones that mislead.

Source: "Redefining Retrieval Evaluation in the Era of LLMs", arXiv 2510.21440, and its published code. Needs relevance
labels.
"""

import math
from collections.abc import Sequence

from core.language_model import LanguageModel, batches_by_tokens, chat_ids, fitting, score_continuations
from scoring.generator import Reading, prompt_of
from scoring.prompts import ABSTAIN, answer_messages

REFUSAL = "NO-RESPONSE"


def udcg(
    no_res: Sequence[float],
    relevant: Sequence[bool],
    relevant_weight: float = 1.0,
    irrelevant_weight: float = -1 / 3,
    normalise: str = "all",
) -> float:
    """UDCG of a passage list: `sigmoid(mean_j w_j * (1 - no_res_j))`.

    Args:
        no_res: probability that the generator abstains, given each passage alone, in [0, 1].
        relevant: whether each passage holds the answer.
        relevant_weight: weight of relevant passages.
        irrelevant_weight: weight of the others.
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
    return 1 / (1 + math.exp(-total))


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
