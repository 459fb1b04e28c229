"""Sample several rewrites of a turn from a causal LM, or decode the most likely one."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch

from core.chat import truncate_to_context
from core.generation import Completion, generate
from core.language_model import LanguageModel
from core.progress import log
from core.records import Candidate, Message, Turn, TurnRecord
from core.sampling import sampler, uniform_draws
from core.settings import RewriterSettings
from rewriter.prompts import RewritePrompt, normalized, read_rewrite, search_query, user_turns


def prompts_of(
    lm: LanguageModel, turns: Sequence[Turn], prompt: RewritePrompt, room: int
) -> list[tuple[list[int], int]]:
    """Token ids of each turn's rewrite prompt, and the number of oldest messages that were omitted to leave `room`
    tokens for the output."""

    def chat(turn: Turn, cut: int) -> list[Message]:
        return prompt.messages(turn.history[cut:], turn.question)

    return truncate_to_context(lm, [(len(turn.history), partial(chat, turn)) for turn in turns], room)


def sample_rewrites(
    lm: LanguageModel, turns: Sequence[Turn], options: RewriterSettings, prompt: RewritePrompt, seed: int
) -> list[TurnRecord]:
    """Sample `options.n` rewrites of each turn, merge duplicates, and add the queries of `options.include`.

    Args:
        lm: the rewriter.
        turns: one batch.
        options: sampling settings; a sample that does not end within `max_new_tokens` is kept and counted.
        prompt: the rewrite prompt.
        seed: determines the samples, together with the id of the turn.

    Returns:
        The distinct candidates of each turn in the order of sampling (those with equal `normalized` texts are merged),
        and counts: `empty` and `cut` samples, `merged` duplicates, `messages_left_out` of the prompt, `too_long`
        prompts.
    """
    prompts, room = prompts_of(lm, turns, prompt, options.max_new_tokens), options.max_new_tokens
    fitting = [i for i, (ids, _) in enumerate(prompts) if len(ids) + room <= lm.context]
    outputs: dict[int, list[Completion]] = {}
    if fitting:
        draws = torch.cat([uniform_draws(seed, turns[i].id, options.n, room) for i in fitting]).to(lm.device)
        choose = sampler(draws, options.temperature, options.top_p)
        sampled = generate(lm, [prompts[i][0] for i in fitting], room, options.batch_tokens, choose, options.n)
        outputs = dict(zip(fitting, sampled, strict=True))
    records = []
    for i, (turn, (_, left_out)) in enumerate(zip(turns, prompts, strict=True)):
        counts = Counter(messages_left_out=left_out, too_long=i not in outputs)
        samples = [read_completion(lm, completion) for completion in outputs.get(i, [])]
        records.append(turn_record(turn, samples, options, counts))
    return records


class Sample(NamedTuple):
    """A sampled rewrite: its text, empty if the output contains none; the log-probability of the output in nats, None
    if unknown; the number of its tokens; whether the model ended it."""

    text: str
    logprob: float | None
    tokens: int
    ended: bool


def read_completion(lm: LanguageModel, completion: Completion) -> Sample:
    """Extract the rewrite from a completion."""
    text = read_rewrite(lm.tokenizer.decode(completion.ids, skip_special_tokens=True))
    logprob = sum(completion.logprobs) + completion.end_logprob
    return Sample(text, logprob, len(completion.ids) + completion.ended, completion.ended)


def turn_record(turn: Turn, samples: Sequence[Sample], options: RewriterSettings, counts: Counter) -> TurnRecord:
    """Build the record of a turn: the distinct rewrites among its samples, and the queries that are included without
    sampling. Adds to `counts`."""
    candidates: dict[str, Candidate] = {}
    for sample in samples:
        key = normalized(sample.text)
        counts.update(cut=not sample.ended, empty=not sample.text, merged=key in candidates)
        if key in candidates:
            candidates[key] = replace(candidates[key], count=candidates[key].count + 1)
        elif sample.text:
            query = search_query(turn.question, sample.text, options)
            candidates[key] = Candidate(sample.text, query, sample.logprob, sample.tokens)
    included = {"question": turn.question, "history": user_turns(turn.history, turn.question)}
    for source in options.include:
        text = included[source]
        query = search_query(turn.question, text, options)
        candidates.setdefault(normalized(text), Candidate(text, query, count=0, source=source))
    return TurnRecord(turn.id, turn.dataset, tuple(candidates.values()), dict(+counts))


def greedy_rewrites(
    lm: LanguageModel, turns: Sequence[Turn], options: RewriterSettings, prompt: RewritePrompt
) -> list[str]:
    """The most likely rewrite of each turn; the question itself if the model's output is empty."""
    prompts, room = prompts_of(lm, turns, prompt, options.max_new_tokens), options.max_new_tokens
    fitting = [i for i, (ids, _) in enumerate(prompts) if len(ids) + room <= lm.context]
    outputs = generate(lm, [prompts[i][0] for i in fitting], room, options.batch_tokens)
    texts = [""] * len(turns)
    for i, (output,) in zip(fitting, outputs, strict=True):
        texts[i] = read_rewrite(lm.tokenizer.decode(output.ids, skip_special_tokens=True))
    if silent := [turn.id for text, turn in zip(texts, turns, strict=True) if not text]:
        log.warning(
            "no rewrite for %d of %d turns (first: `%s`): too long for the model, or its output is empty; the "
            "unchanged question is used", len(silent), len(turns), silent[0],
        )  # fmt: skip
    return [text or turn.question for text, turn in zip(texts, turns, strict=True)]
