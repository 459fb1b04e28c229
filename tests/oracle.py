"""The plain way to score, which the fast way must equal: one at a time, all logits kept, full forwards."""

import torch

from core.records import TokenStats
from scoring.generator import prompt_of


def plain_scores(lm, reading, max_new_tokens: int) -> TokenStats:
    """Greedy answer by `generate`, then one full forward with and one without the documents."""
    grounded, _ = prompt_of(lm, reading, max_new_tokens)
    bare, _ = prompt_of(lm, type(reading)(reading.history, reading.question, ()), max_new_tokens)
    out = lm.model.generate(
        torch.tensor([grounded]),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        pad_token_id=lm.tokenizer.pad_token_id,
    )
    answer = [token for token in out[0, len(grounded) :].tolist() if token not in lm.stop_ids]
    columns = []
    for prompt in (bare, grounded):
        with torch.no_grad():
            logits = lm.model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1].float()
        p = torch.softmax(logits, -1)
        entropy = [-sum(float(x) * float(x.log()) for x in row if x > 0) for row in p]
        columns.append((entropy, [float(row[token].log()) for row, token in zip(p, answer, strict=True)]))
    (h0, logp0), (hd, logpd) = columns
    words = tuple(lm.tokenizer.decode([token]) for token in answer)
    return TokenStats(words, tuple(h0), tuple(hd), tuple(logp0), tuple(logpd))


def plain_no_res(lm, reading, refusal: list[int], abstention: str) -> list[float]:
    """Probability of abstaining from each passage: one at a time, all logits kept."""
    from scoring.prompts import ABSTAIN

    found = []
    for document in reading.documents:
        alone = type(reading)(reading.history, reading.question, (document,))
        prompt, _ = prompt_of(lm, alone, len(refusal), ABSTAIN)
        with torch.no_grad():
            p = torch.softmax(lm.model(torch.tensor([prompt + refusal])).logits[0].float(), -1)
        steps = [float(p[len(prompt) - 1 + i, token]) for i, token in enumerate(refusal)]
        probability = 1.0
        for step in steps[:1] if abstention == "first_token" else steps:
            probability *= step
        found.append(probability)
    return found
