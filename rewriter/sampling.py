"""Several rewrites a turn from a causal LM, or the most likely one."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from core.batches import each_batch
from core.chat import prompts_that_fit
from core.decoding import Decoded, Pick, decode, greedy
from core.language_model import LanguageModel
from core.records import Candidate, Message, Turn
from core.runtime import log, seed_of
from rewriter.prompts import INSTRUCTION, normalised, read_rewrite, rewrite_messages


def prompts_of(lm: LanguageModel, turns: Sequence[Turn], instruction: str, room: int) -> list[tuple[list[int], int]]:
    """Token ids of turns' rewrite prompts, with the oldest messages left out where the context is too short.

    Args:
        lm: the rewriter.
        turns: the turns.
        instruction: system message; empty for the built-in one.
        room: tokens to leave for the output.

    Returns:
        For each turn the ids and how many messages were left out.
    """

    def chat_of(turn: Turn) -> Callable[[int], list[Message] | None]:
        def chat(cut: int) -> list[Message] | None:
            if cut > len(turn.history):
                return None
            return rewrite_messages(list(turn.history[cut:]), turn.question, instruction or INSTRUCTION)

        return chat

    return prompts_that_fit(lm, [chat_of(turn) for turn in turns], room)


def sampler(noise: Tensor, temperature: float, top_p: float) -> Pick:
    """A choice by inverse transform from fixed noise: the same noise and distribution give the same token.

    Args:
        noise: [rows, steps], uniform in [0, 1).
        temperature: above 0; 1 samples the model's own distribution.
        top_p: the smallest set of tokens with at least this probability is kept; 1 keeps all.
    """

    def pick(logprobs: Tensor, steps: Tensor, numbers: Tensor) -> Tensor:
        probabilities = (logprobs / temperature).softmax(-1).double()
        order = None
        if top_p < 1:
            probabilities, order = probabilities.sort(-1, descending=True)
            probabilities = probabilities.masked_fill(probabilities.cumsum(-1) - probabilities >= top_p, 0.0)
        heights = probabilities.cumsum(-1)
        wanted = noise[numbers, steps, None].to(heights) * heights[:, -1:]
        tokens = torch.searchsorted(heights, wanted, right=True).clamp(max=heights.shape[-1] - 1)
        return (tokens if order is None else order.gather(-1, tokens))[:, 0]

    return pick


def sample_rewrites(
    lm: LanguageModel,
    turns: list[Turn],
    n: int,
    temperature: float,
    top_p: float,
    max_new_tokens: int,
    seed: int,
    instruction: str = "",
) -> list[tuple[list[Candidate], dict[str, int]]]:
    """Sample `n` rewrites of each turn, cleaned and merged.

    Args:
        lm: the rewriter.
        turns: one batch.
        n: samples per turn.
        temperature: above 0.
        top_p: in (0, 1].
        max_new_tokens: longest output; a sample that does not end by then is kept and counted as `cut`.
        seed: with the turn's id it decides the samples.
        instruction: system message; empty for the built-in one.

    Returns:
        For each turn its distinct candidates in the order they came (`normalised` decides what is the same), and
        counts: `empty` and `cut` samples, `merged` duplicates, `messages_left_out` of the prompt.
    """
    prompts, left_out = zip(*prompts_of(lm, turns, instruction, max_new_tokens), strict=True)
    sampled: list[list[Decoded]] = [[]] * len(turns)

    def sample(batch: list[int]) -> None:
        noise = torch.cat([noise_of(seed, turns[i].id, n, max_new_tokens) for i in batch])
        pick = sampler(noise.to(lm.device), temperature, top_p)
        outputs = decode(lm, [prompts[i] for i in batch], max_new_tokens, pick, n)
        for i, some in zip(batch, outputs, strict=True):
            sampled[i] = some

    in_batches_that_fit(lm, prompts, max_new_tokens, sample)
    found = []
    for missing, outputs in zip(left_out, sampled, strict=True):
        counts: Counter = Counter(messages_left_out=missing, too_long=not outputs)
        candidates: dict[str, Candidate] = {}
        for output in outputs:
            text = read_rewrite(lm.tokenizer.decode(output.ids, skip_special_tokens=True))
            counts["cut"] += not output.ended
            if not text:
                counts["empty"] += 1
                continue
            same = candidates.get(normalised(text))
            if same is not None:
                candidates[normalised(text)] = replace(same, count=same.count + 1)
                counts["merged"] += 1
            else:
                total = sum(output.logprobs) + output.end_logprob
                candidates[normalised(text)] = Candidate(text, total, len(output.ids) + output.ended)
        found.append((list(candidates.values()), {k: v for k, v in counts.items() if v}))
    return found


def noise_of(seed: int, turn_id: str, n: int, steps: int) -> Tensor:
    """Uniform noise [n, steps] that belongs to one turn."""
    return torch.rand(n, steps, generator=torch.Generator().manual_seed(seed_of(seed, turn_id)))


def best_rewrites(lm: LanguageModel, turns: list[Turn], max_new_tokens: int, instruction: str = "") -> list[str]:
    """The most likely rewrite of each turn (greedy); the question itself where the model says nothing."""
    prompts = [ids for ids, _ in prompts_of(lm, turns, instruction, max_new_tokens)]
    texts = [""] * len(turns)

    def rewrite(batch: list[int]) -> None:
        for i, (output,) in zip(batch, decode(lm, [prompts[i] for i in batch], max_new_tokens, greedy), strict=True):
            texts[i] = read_rewrite(lm.tokenizer.decode(output.ids, skip_special_tokens=True))

    in_batches_that_fit(lm, prompts, max_new_tokens, rewrite)
    if silent := [turn.id for text, turn in zip(texts, turns, strict=True) if not text]:
        log.warning("no rewrite for %d of %d turns (first: `%s`): too long for the model, or its output is empty; "
                    "the question stands as it is", len(silent), len(turns), silent[0])  # fmt: skip
    return [text or turn.question for text, turn in zip(texts, turns, strict=True)]


def in_batches_that_fit(
    lm: LanguageModel, prompts: Sequence[list[int]], room: int, work: Callable[[list[int]], None]
) -> None:
    """Work through the prompts that leave room for an output; the others are passed over."""
    fits = [i for i, prompt in enumerate(prompts) if len(prompt) + room <= lm.context]
    lengths = [len(prompts[i]) for i in fits]
    each_batch(lm, lengths, sum(lengths), lambda batch: work([fits[i] for i in batch]))
