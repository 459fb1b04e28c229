"""Choose the next tokens: greedily, or by sampling from fixed random numbers."""

from collections.abc import Callable

import torch
from torch import Tensor

from core.distributed import seed_of

TokenSampler = Callable[[Tensor, int, Tensor], Tensor]
"""Chooses next tokens: (log-probabilities [samples, vocabulary], step, sample numbers [samples]) -> token ids
[samples]. The choice for a sample is independent of the rest of the batch."""


def greedy(logprobs: Tensor, step: int, sample_numbers: Tensor) -> Tensor:
    """The most likely tokens; a `TokenSampler`."""
    return logprobs.argmax(-1)


def sampler(draws: Tensor, temperature: float, top_p: float) -> TokenSampler:
    """Sampler by inverse transform from fixed uniform draws: the same draws and distribution give the same token.

    Args:
        draws: [samples, steps], uniform in [0, 1).
        temperature: above 0; 1 samples the model's own distribution.
        top_p: the smallest set of tokens with at least this probability is kept; 1 keeps all.
    """

    def choose(logprobs: Tensor, step: int, sample_numbers: Tensor) -> Tensor:
        probabilities = (logprobs / temperature).softmax(-1)
        order = None
        if top_p < 1:
            probabilities, order = probabilities.sort(-1, descending=True)
            probabilities = probabilities.masked_fill(probabilities.cumsum(-1) - probabilities >= top_p, 0.0)
        cumulative = probabilities.cumsum(-1, dtype=torch.float64)
        thresholds = draws[sample_numbers, step, None].to(cumulative) * cumulative[:, -1:]
        tokens = torch.searchsorted(cumulative, thresholds, right=True).clamp(max=cumulative.shape[-1] - 1)
        return (tokens if order is None else order.gather(-1, tokens))[:, 0]

    return choose


def uniform_draws(seed: int, key: str, n: int, steps: int) -> Tensor:
    """Uniform draws [n, steps] that depend only on the seed and `key`."""
    return torch.rand(n, steps, generator=torch.Generator().manual_seed(seed_of(seed, key)))
