"""A plain reference implementation of scoring, without batching: full forward passes that keep all logits."""

import pytest
import torch

from core.records import GenerationInput, TokenStats
from scoring.generator import Generator
from scoring.prompts import ABSTAIN


def prompt_of(lm, reading: GenerationInput, room: int, *instruction: str) -> tuple[list[int], int]:
    """Token ids of one prompt, and the number of documents left out."""
    return Generator(lm, room, 1000).prompts([reading], room, *instruction)[reading]


def assert_same_stats(stats: TokenStats, plain: TokenStats, tolerance: float = 1e-4) -> None:
    """Check that statistics have the same tokens, at least one, and the same numbers."""
    assert stats.tokens == plain.tokens and plain.tokens
    for column in ("h0", "hd", "logp0", "logpd"):
        assert getattr(stats, column) == pytest.approx(getattr(plain, column), abs=tolerance), column


@torch.no_grad()
def plain_scores(generator: Generator, reading: GenerationInput) -> TokenStats:
    """Answer greedily with `generate`, then run one full forward pass with and one without documents."""
    lm, room = generator.lm, generator.max_new_tokens
    grounded, _ = generator.prompts([reading], room)[reading]
    ids = torch.tensor([grounded], device=lm.device)
    out = lm.model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=room, do_sample=False,
        pad_token_id=lm.tokenizer.pad_token_id, eos_token_id=lm.stop_ids, output_scores=True,
        return_dict_in_generate=True,
    )  # fmt: skip
    answer = [token for token in out.sequences[0, len(grounded) :].tolist() if token not in lm.stop_ids]
    return plain_logged_scores(generator, reading, answer)


@torch.no_grad()
def plain_logged_scores(generator: Generator, reading: GenerationInput, answer: list[int]) -> TokenStats:
    """Run one full forward pass over prompt and answer with documents, and one without."""
    lm, room, columns = generator.lm, generator.max_new_tokens, []
    for each in (reading.without_documents, reading):
        prompt, _ = generator.prompts([each], room)[each]
        logits = lm.model(torch.tensor([prompt + answer], device=lm.device)).logits[0].float()
        p = torch.softmax(logits, -1)[len(prompt) - 1 : -1]
        columns.append((torch.special.entr(p).sum(-1).tolist(), p[range(len(answer)), answer].log().tolist()))
    (h0, logp0), (hd, logpd) = columns
    words = tuple(lm.tokenizer.decode([token]) for token in answer)
    return TokenStats(words, tuple(h0), tuple(hd), tuple(logp0), tuple(logpd))


@torch.no_grad()
def plain_no_res(lm, reading: GenerationInput, refusal: list[int], abstention: str) -> list[float]:
    """Probability of abstaining from each passage, computed without batching from all logits."""
    probabilities = []
    for document in reading.documents:
        alone = GenerationInput(reading.history, reading.question, (document,))
        prompt, _ = prompt_of(lm, alone, len(refusal), ABSTAIN)
        p = torch.softmax(lm.model(torch.tensor([prompt + refusal])).logits[0].float(), -1)
        steps = p[range(len(prompt) - 1, len(prompt) + len(refusal) - 1), refusal]
        probabilities.append(float(steps[0] if abstention == "first_token" else steps.prod()))
    return probabilities
