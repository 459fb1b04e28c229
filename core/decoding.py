"""Decoding, and reading what is given, with each token's log-probability and entropy.

Ours and not `generate`, for three reasons: the log-probability and entropy of every step are taken from the raw logits
as they appear (nothing is kept of them), the samples of one prompt share its pass, and a sample depends on the seed
and its prompt alone, not on the batch it happened to be in.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from core.batches import batches_by_tokens
from core.guesses import Guesses
from core.language_model import LanguageModel
from core.reading import padded, read_prompts

GUESSED = 3  # most tokens guessed for a row in one pass
ROOM = 2  # times the longest continuation: slots for it, wrong guesses counted in
FACTS = (1 << 17, 1 << 26)  # numbers of a float32 copy of logits, on a CPU (what its cache holds) and on a GPU
LOGITS = (1 << 23, 1 << 28)  # most numbers of the logits of one pass, on a CPU and on a GPU


@dataclass
class Decoded:
    """One decoded sequence, without its end-of-turn token.

    `logprobs` and `entropies` [T] are of the raw distribution at each token, in nats; `ended` tells whether the model
    ended the turn itself, `end_logprob` is then that token's log-probability.
    """

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    ended: bool = False
    end_logprob: float = 0.0


Pick = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Chooses the next tokens: (log-probabilities [rows, vocabulary], steps [rows], numbers of the rows [rows]) -> ids
[rows]. A row's choice depends on these alone, not on the company it is in."""


def greedy(logprobs: Tensor, steps: Tensor, numbers: Tensor) -> Tensor:
    """The most likely token of each row."""
    if logprobs.device.type == "cpu" and logprobs.dtype == torch.float32:
        return torch.from_numpy(logprobs.numpy().argmax(-1))  # 14 times as fast as torch's in 150,000 columns
    return logprobs.argmax(-1)


def entropy_of(logprobs: Tensor) -> Tensor:
    """Entropy in nats of each row of log-probabilities [rows, vocabulary], which are overwritten; impossible tokens
    add 0.

    H = -sum p log p, in float32 (METHODS of GROGU, arXiv 2601.23129).
    """
    p = logprobs.exp()
    return -p.mul_(logprobs.clamp_(min=torch.finfo(logprobs.dtype).min)).sum(-1)


def facts_of(logits: Tensor, choose: Callable[[Tensor, slice], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """One token of each row of logits, its log-probability and the row's entropy; in float32, a few rows at a time.

    Args:
        logits: [rows, vocabulary], raw.
        choose: (log-probabilities [some, vocabulary], which rows these are) -> token of each [some].

    Returns:
        Tokens, log-probabilities and entropies [rows].
    """
    size = max(1, FACTS[logits.device.type == "cuda"] // logits.shape[-1])
    found = []
    for start in range(0, len(logits), size):
        rows = slice(start, start + size)
        logprobs = logits[rows].float().log_softmax(-1)
        tokens = choose(logprobs, rows)
        found.append((tokens, logprobs.gather(-1, tokens[:, None])[:, 0], entropy_of(logprobs)))
    tokens, chosen, entropies = map(torch.cat, zip(*found, strict=True))
    return tokens, chosen, entropies


@dataclass
class Continuation:
    """A continuation on its way: its number, the most tokens it still gets, what may follow, and what there is."""

    number: int
    left: int
    guesses: Guesses
    made: Decoded = field(default_factory=Decoded)

    def add(self, token: int, logprob: float, entropy: float, ends: bool) -> None:
        """The next token, or the one that ends it."""
        self.left = 0 if ends else self.left - 1
        if ends:
            self.made.ended, self.made.end_logprob = True, logprob
            return
        self.made.ids.append(token)
        self.made.logprobs.append(logprob)
        self.made.entropies.append(entropy)
        self.guesses.add(token)


@torch.inference_mode()
def decode(
    lm: LanguageModel, prompts: list[list[int]], max_new_tokens: int, pick: Pick = greedy, samples: int = 1
) -> list[list[Decoded]]:
    """Continue each prompt.

    A pass reads the last token of each row and a few guesses of what follows; for each guess that is what is picked, a
    pass is saved. Slots of the cache that hold wrong ones are masked, or written again where all rows have them.

    Args:
        lm: the model.
        prompts: token ids of each prompt, of any lengths.
        max_new_tokens: longest continuation.
        pick: chooses the next tokens; rows are numbered prompt by prompt (`prompt * samples + sample`).
        samples: continuations per prompt; they share the pass over it.

    Returns:
        `samples` sequences for each prompt.
    """
    cache, mask, order = read_prompts(lm, prompts, ROOM * max_new_tokens)
    slots = mask.shape[1] + ROOM * max_new_tokens
    if samples > 1:
        cache.batch_repeat_interleave(samples)
        mask = mask.repeat_interleave(samples, 0)
    position = mask.sum(-1, keepdim=True)
    last = int(position.max()) + max_new_tokens - 1  # of a token; what only fills a row up may not go beyond it
    rows = [
        Continuation(i * samples + sample, max_new_tokens, Guesses(prompts[i]))
        for i in order
        for sample in range(samples)
    ]
    made = [row.made for row in sorted(rows, key=lambda row: row.number)]
    while longest := max(row.left for row in rows):
        running = [k for k, row in enumerate(rows) if row.left]
        if len(running) <= 0.75 * len(rows):  # let go of the rows that have ended
            kept = torch.tensor(running, device=lm.device)
            cache.keep(kept)
            mask, position, rows = mask[kept], position[kept], [rows[k] for k in running]
        spare = slots - mask.shape[1] - longest if cache.goes_back else 0
        guessed = [row.guesses.next(min(GUESSED, spare, row.left - 1)) for row in rows]
        width = 1 + max(map(len, guessed))
        given = [padded([row.guesses.last[-1], *some], width) for row, some in zip(rows, guessed, strict=True)]
        columns = torch.arange(width, device=lm.device)
        mask = torch.cat([mask, mask.new_ones(len(rows), width)], -1)
        output = lm.model(
            input_ids=torch.tensor(given, device=lm.device),
            attention_mask=mask,
            position_ids=(position + columns).clamp(max=last),
            past_key_values=cache,
            use_cache=True,
        )
        right = take(output.logits, rows, guessed, lm.stop_ids, pick)
        del output  # its logits would stand beside those of the next pass
        wrong = width - max(right)
        right = torch.tensor(right, device=lm.device)[:, None]
        mask[:, -width:] = columns < right
        position = position + right
        if wrong:
            cache.crop(-wrong)
            mask = mask[:, :-wrong]
    return [made[i * samples : (i + 1) * samples] for i in range(len(prompts))]


def take(
    logits: Tensor, rows: list[Continuation], guessed: list[list[int]], stop: Sequence[int], pick: Pick
) -> list[int]:
    """Add to each row that goes on what a pass gives: a token, and one more after each guess that was right.

    Args:
        logits: [rows, columns, vocabulary].
        rows: in the order of the logits.
        guessed: the tokens in the columns after the first.
        stop: tokens that end a row.
        pick: chooses the tokens.

    Returns:
        Number of columns of each row whose tokens belong to it.
    """
    right = [0] * len(rows)
    going = [k for k, row in enumerate(rows) if row.left]
    for column in range(logits.shape[1]):
        numbers = torch.tensor([rows[k].number for k in going], device=logits.device)
        steps = torch.tensor([len(rows[k].made.ids) for k in going], device=logits.device)

        def choose(logprobs: Tensor, some: slice, steps: Tensor = steps, numbers: Tensor = numbers) -> Tensor:
            return pick(logprobs, steps[some], numbers[some])

        given = logits[:, column]
        found = facts_of(given if len(going) == len(rows) else given[going], choose)
        for k, token, logprob, entropy in zip(going, *(facts.tolist() for facts in found), strict=True):
            rows[k].add(token, logprob, entropy, token in stop)
            right[k] += 1
        going = [k for k in going if rows[k].left and guessed[k][column : column + 1] == [rows[k].guesses.last[-1]]]
        if not going:
            break
    return right


@torch.inference_mode()
def score_continuations(
    lm: LanguageModel, prompts: list[list[int]], continuations: list[list[list[int]]]
) -> list[list[Decoded]]:
    """Entropy and log-probability at each token of given continuations; those of one prompt share the pass over it.

    Args:
        lm: the model.
        prompts: token ids of each prompt.
        continuations: for each prompt, continuations of at least one token.

    Returns:
        For each prompt and continuation its `logprobs` and `entropies`. Logits exist at the continuations' positions
        alone, and of no more than `LOGITS` numbers at once.
    """
    cache, mask, order = read_prompts(lm, prompts, max(len(row) for rows in continuations for row in rows))
    made = [[Decoded(row) for row in rows] for rows in continuations]
    room = LOGITS[lm.device.type == "cuda"] // lm.model.config.get_text_config().vocab_size
    for turn in range(max(map(len, made))):  # the first of each prompt, then the second of those that have one, ...
        rows = [place for place, number in enumerate(order) if len(made[number]) > turn]
        if len(rows) < len(order):
            kept = torch.tensor(rows, device=lm.device)
            cache.keep(kept)
            mask, order = mask[kept], [order[place] for place in rows]
        lengths = [len(made[number][turn].ids) for number in order]
        for part in batches_by_tokens(lengths, room, range(len(order))):
            some, length = slice(part[0], part[-1] + 1), max(lengths[place] for place in part)
            given = [padded([prompts[order[i]][-1], *made[order[i]][turn].ids], length + 1) for i in part]
            given = torch.tensor(given, device=lm.device)
            there = torch.tensor([padded([1] * lengths[i], length) for i in part], device=lm.device)
            position = mask[some].sum(-1)
            last = max(start + lengths[i] - 1 for start, i in zip(position.tolist(), part, strict=True))
            position = position[:, None] + torch.arange(length, device=lm.device)
            logits = lm.model(
                input_ids=given[:, :-1],
                attention_mask=torch.cat([mask[some], there], -1),
                position_ids=position.clamp(max=last),
                past_key_values=cache.some(some),
                use_cache=True,
            ).logits
            tokens = given[:, 1:].flatten()
            _, *facts = facts_of(logits.flatten(0, 1), lambda _, some, tokens=tokens: tokens[some])
            logprobs, entropies = (fact.view(-1, length).tolist() for fact in facts)
            for row, i in enumerate(part):
                one = made[order[i]][turn]
                one.logprobs, one.entropies = logprobs[row][: lengths[i]], entropies[row][: lengths[i]]
    return made
