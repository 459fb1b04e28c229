"""The generator's two passes: it answers with documents, then the same answer is read without them.

Duplicates are computed once: a (question, document list) in the grounded pass, a (question, answer) in the
ungrounded one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from core.batches import each_batch
from core.beginnings import alike
from core.chat import prompts_that_fit
from core.decoding import Decoded, decode, score_continuations
from core.language_model import LanguageModel
from core.records import Message, TokenStats
from scoring.prompts import ANSWER, answer_messages


@dataclass(frozen=True)
class Reading:
    """One thing to answer: a question in its conversation, and the documents to answer from, in rank order."""

    history: tuple[tuple[str, str], ...]  # (role, content), hashable
    question: str
    documents: tuple[str, ...]

    @classmethod
    def of(cls, history: Sequence[Message], question: str, documents: Sequence[str]) -> "Reading":
        return cls(tuple((m["role"], m["content"]) for m in history), question, tuple(documents))

    @property
    def messages(self) -> list[Message]:
        return [{"role": role, "content": content} for role, content in self.history]


@dataclass(frozen=True)
class Answered:
    """What the passes made of a reading. `cut` documents did not fit the context; `ended` tells a finished answer.
    The answer is empty where the question alone does not fit."""

    answer: str
    stats: TokenStats
    cut: int
    ended: bool


def prompt_of(lm: LanguageModel, reading: Reading, room: int, instruction: str = ANSWER) -> tuple[list[int], int]:
    """One of `prompts_of`."""
    return prompts_of(lm, [reading], room, instruction)[0]


def prompts_of(
    lm: LanguageModel, readings: Sequence[Reading], room: int, instruction: str = ANSWER
) -> list[tuple[list[int], int]]:
    """Prompt ids with documents left out from the last one back, then messages from the oldest, until `room` tokens
    are free.

    Returns:
        For each reading the ids and the number of documents left out. The question is never cut.
    """

    def chat_of(reading: Reading) -> Callable[[int], list[Message] | None]:
        documents, history = list(reading.documents), reading.messages

        def chat(cut: int) -> list[Message] | None:
            if cut > len(documents) + len(history):
                return None
            kept, later = documents[: max(0, len(documents) - cut)], history[max(0, cut - len(documents)) :]
            return answer_messages(later, reading.question, kept, instruction)

        return chat

    made = prompts_that_fit(lm, [chat_of(reading) for reading in readings], room)
    return [(ids, min(cut, len(reading.documents))) for reading, (ids, cut) in zip(readings, made, strict=True)]


def answer_all(
    lm: LanguageModel, readings: Sequence[Reading], max_new_tokens: int, batch_tokens: int
) -> list[Answered]:
    """Answer every reading greedily and record each token's entropy and log-probability with and without the
    documents.

    Args:
        lm: the generator.
        readings: what to answer; duplicates cost nothing.
        max_new_tokens: longest answer.
        batch_tokens: tokens per batch, the answer's room counted in.

    Returns:
        One record per reading, in order. `stats` lists have the answer's length, end-of-turn tokens left out.
    """
    if not readings:
        return []
    distinct = list(dict.fromkeys(readings))
    prompts, cut = zip(*prompts_of(lm, distinct, max_new_tokens), strict=True)
    grounded: list[Decoded] = [Decoded()] * len(distinct)

    def answer(batch: list[int]) -> None:
        for i, outputs in zip(batch, decode(lm, [prompts[i] for i in batch], max_new_tokens), strict=True):
            grounded[i] = outputs[0]

    lengths = [len(prompt) + max_new_tokens for prompt in prompts]
    context = lm.context
    short = [i for i, length in enumerate(lengths) if length <= context]
    order = alike([prompts[i] for i in short])
    each_batch(lm, [lengths[i] for i in short], batch_tokens, lambda batch: answer([short[i] for i in batch]), order)
    bare = [Reading(reading.history, reading.question, ()) for reading in distinct]
    wanted = list(dict.fromkeys((b, tuple(g.ids)) for b, g in zip(bare, grounded, strict=True) if g.ids))
    ungrounded = dict(zip(wanted, read_again(lm, wanted, max_new_tokens, batch_tokens), strict=True))
    made = {}
    for reading, left, without, given in zip(distinct, cut, bare, grounded, strict=True):
        plain = ungrounded.get((without, tuple(given.ids))) or Decoded()
        stats = TokenStats(
            tokens=tuple(lm.tokenizer.decode([token]) for token in given.ids),
            h0=tuple(plain.entropies),
            hd=tuple(given.entropies),
            logp0=tuple(plain.logprobs),
            logpd=tuple(given.logprobs),
        )
        text = lm.tokenizer.decode(given.ids, skip_special_tokens=True).strip()
        made[reading] = Answered(text, stats, left, given.ended)
    return [made[reading] for reading in readings]


def read_again(
    lm: LanguageModel, wanted: list[tuple[Reading, tuple[int, ...]]], room: int, batch_tokens: int
) -> list[Decoded | None]:
    """Entropy and log-probability at the tokens of given replies; replies to one prompt share the pass over it.

    Args:
        lm: the model.
        wanted: readings with the token ids of a reply to each, at least one.
        room: tokens to leave for the longest reply.
        batch_tokens: tokens per batch.

    Returns:
        One for each reply; None where a document or the reply does not fit the context.
    """
    replies: dict[Reading, list[int]] = {}
    for number, (reading, _) in enumerate(wanted):
        replies.setdefault(reading, []).append(number)
    readings, prompts, context = [], [], lm.context
    found: list[Decoded | None] = [None] * len(wanted)
    for reading, (ids, cut) in zip(replies, prompts_of(lm, list(replies), room), strict=True):
        replies[reading] = [i for i in replies[reading] if not cut and len(ids) + len(wanted[i][1]) <= context]
        if replies[reading]:
            readings.append(reading)
            prompts.append(ids)

    def read(batch: list[int]) -> None:
        texts = [[list(wanted[number][1]) for number in replies[readings[i]]] for i in batch]
        for i, outputs in zip(batch, score_continuations(lm, [prompts[i] for i in batch], texts), strict=True):
            for number, output in zip(replies[readings[i]], outputs, strict=True):
                found[number] = output

    lengths = [len(ids) + max(len(wanted[i][1]) for i in replies[r]) for ids, r in zip(prompts, readings, strict=True)]
    each_batch(lm, lengths, batch_tokens, read, alike(prompts))
    return found
