"""Decoding, and reading what is given, with each token's log-probability and entropy.

Ours and not `generate`, for three reasons: the log-probability and entropy of every step are taken from the raw logits
as they appear (nothing is kept of them), the samples of one prompt share its pass, and a sample depends on the seed
and its prompt alone, not on the batch it happened to be in.
"""

import copy
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from core.batches import batches_by_tokens
from core.beginnings import passes_of
from core.language_model import LanguageModel
from core.workspace import workspace

FACTS = (1 << 17, 1 << 26)  # numbers of a float32 copy of logits, on a CPU (what its cache holds) and on a GPU
READ = 1024  # tokens that a CPU reads in one pass, if a row is not longer
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


Pick = Callable[[Tensor, int, Tensor], Tensor]
"""Chooses the next tokens: (log-probabilities [rows, vocabulary], step, numbers of the rows [rows]) -> ids [rows]."""


def greedy(logprobs: Tensor, step: int, numbers: Tensor) -> Tensor:
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


class _Read(Exception):
    """Raised when the cache has the keys and values of every layer."""


class _NotANumber(Exception):
    """Raised when rows go on from one that is not finite: a token of it that no other row has spoils them all."""


class PromptCache(DynamicCache):
    """A cache that, while `reading`, ends the pass as soon as its last layer is filled: what that layer goes on to
    compute at the prompt's tokens nobody looks at."""

    reading = False

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        keys, values = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        if self.reading and layer_idx == len(self.layers) - 1:
            before = values[:, :, : values.shape[2] - value_states.shape[2]]
            raise _Read if before.sum(dtype=torch.float32).isfinite() else _NotANumber
        return keys, values

    def keep(self, rows: Tensor) -> None:
        """Let go of all but some rows, in rising order."""
        for layer in self.layers:
            if isinstance(layer, RoomyLayer):
                layer.keep(rows.tolist())
            else:
                layer.batch_select_indices(rows)


class RoomyLayer(DynamicLayer):
    """Keys and values in tensors with room for more tokens, which are written there; `DynamicLayer` copies all that
    went before at every token. Prompts are read a few rows at a time, one after another: `sources` are those from
    which the rows of a pass go on, None once all are read. Their first `before` slots are taken over.
    """

    def __init__(self, rows: int, length: int, room: int):
        super().__init__()
        self.all_rows, self.length, self.room = rows, length, room
        self.read = 0
        self.sources: list[int] | None = None
        self.before = 0
        self.whole: tuple[Tensor, Tensor] | None = None

    def begin(self, sources: list[int], before: int) -> None:
        """A pass over the next rows begins."""
        self.sources, self.before = sources, before
        if before:
            self.show(before)

    def finish(self) -> None:
        """All rows are read."""
        self.sources = None
        self.show(self.length)

    def show(self, length: int) -> None:
        """Let the first `length` slots of every row be seen."""
        self.keys, self.values = (whole[:, :, :length] for whole in self.whole)
        self.dtype, self.device, self.is_initialized = self.keys.dtype, self.keys.device, True

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        both = (key_states, value_states)
        if self.sources is not None:
            return self._read(both)
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        for whole, states in zip(self.whole, both, strict=True):
            whole[:, :, start:end] = states
        self.show(end)
        return self.keys, self.values

    def _read(self, both: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Keep what a pass over some rows has computed, and give what these rows look at."""
        if self.whole is None:
            slots = self.length + self.room
            self.whole = tuple(workspace.take(s, self.all_rows, s.shape[1], slots, s.shape[3]) for s in both)
        before = self.before
        end = before + both[0].shape[2]
        rows = slice(self.read, self.read + len(self.sources))
        self.read = rows.stop
        for whole, states in zip(self.whole, both, strict=True):
            if before:
                whole[rows, :, :before] = whole[:, :, :before].index_select(0, torch.tensor(self.sources))
            whole[rows, :, before:end] = states
            whole[rows, :, end : self.length] = 0
        return tuple(whole[rows, :, :end] for whole in self.whole) if before else both

    def keep(self, rows: list[int]) -> None:
        """Let go of all but some rows, in rising order; these move together where they stand."""
        length = self.get_seq_length()
        for whole in self.whole:
            for new, old in enumerate(rows):
                if new != old:
                    whole[new, :, :length] = whole[old, :, :length]
        self.whole = tuple(whole[: len(rows)] for whole in self.whole)
        self.show(length)

    def batch_select_indices(self, indices: Tensor) -> None:
        length, self.whole = self.get_seq_length(), tuple(whole[indices] for whole in self.whole)
        self.show(length)

    def batch_repeat_interleave(self, repeats: int) -> None:
        length = self.get_seq_length()
        self.whole = tuple(whole.repeat_interleave(repeats, 0) for whole in self.whole)
        self.show(length)


def read_prompts(lm: LanguageModel, prompts: list[list[int]], room: int) -> tuple[PromptCache, Tensor, list[int]]:
    """Read each prompt up to its last token, which the next pass gives together with what follows.

    Rows are padded on the right: no token sees what comes after it, so the pass needs no mask and computes the lower
    triangle alone. A model with a sliding window shorter than the rows counts its window in slots of the cache; its
    rows are padded on the left, where the slots of a row stand together.

    On a CPU a few rows are read at a time (`READ`), so that what one operation writes is still in the processor's
    cache when the next one reads it, and what prompts have in common at their beginnings is read once; keys and values
    of all rows then stand together for what follows.

    Args:
        lm: the model.
        prompts: token ids of each prompt.
        room: most tokens that will follow a prompt, its last one counted in.

    Returns:
        The cache, which of its slots hold a token of the row [batch, length], and the prompt's number in each row.
    """
    rows = [prompt[:-1] for prompt in prompts]
    length = max(map(len, rows))
    window = getattr(lm.model.config.get_text_config(), "sliding_window", None) or length
    left = window < length
    cache = PromptCache(config=lm.model.config)
    plain = all(type(layer) is DynamicLayer for layer in cache.layers)
    if left or not plain or not all(rows) or lm.device.type != "cpu":
        mask = torch.tensor([padded([1] * len(row), length, 0, left) for row in rows], device=lm.device)
        where = {"attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)} if left else {}
        read_rows(lm, cache, rows, left, where)
        return cache, mask, list(range(len(rows)))
    try:
        mask, order = read_in_passes(lm, cache, rows, room)
    except _NotANumber:
        mask, order = read_in_passes(lm, cache, rows, room, share=False)
    return cache, mask, order


def read_in_passes(
    lm: LanguageModel, cache: PromptCache, rows: list[list[int]], room: int, share: bool = True
) -> tuple[Tensor, list[int]]:
    """Fill a cache as `passes_of` plans it; returns what `read_prompts` returns beside it."""
    passes = passes_of(rows, READ, share)
    order = [row.prompt for one in passes for row in one.rows]
    place_of = {number: place for place, number in enumerate(order)}
    length = max(map(len, rows))
    mask = torch.tensor([padded([1] * len(rows[number]), length) for number in order])
    workspace.begin(2 * len(cache.layers))
    cache.layers = [RoomyLayer(len(rows), length, room) for _ in cache.layers]
    for one in passes:
        for layer in cache.layers:
            layer.begin([place_of[row.source] for row in one.rows], one.before)
        read_rows(lm, cache, [rows[row.prompt][one.before :] for row in one.rows], False, {})
    for layer in cache.layers:
        layer.finish()
    return mask, order


def read_rows(
    lm: LanguageModel, cache: PromptCache, rows: list[list[int]], left: bool, where: dict[str, Tensor]
) -> None:
    """Fill a cache in one pass over rows, padded to the longest; `where` they stand and what they see, if that is not
    all before them."""
    length = max(map(len, rows))
    ids = torch.tensor([padded(row, length, lm.tokenizer.pad_token_id, left) for row in rows], device=lm.device)
    if not length:
        return
    cache.reading = True
    try:
        with suppress(_Read):
            lm.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1, **where)
    finally:
        cache.reading = False


@torch.inference_mode()
def decode(
    lm: LanguageModel, prompts: list[list[int]], max_new_tokens: int, pick: Pick = greedy, samples: int = 1
) -> list[list[Decoded]]:
    """Continue each prompt.

    Args:
        lm: the model.
        prompts: token ids of each prompt, of any lengths.
        max_new_tokens: longest continuation.
        pick: chooses the next tokens; rows are numbered prompt by prompt (`prompt * samples + sample`).
        samples: continuations per prompt; they share the pass over it.

    Returns:
        `samples` sequences for each prompt.
    """
    cache, mask, order = read_prompts(lm, prompts, max_new_tokens)
    if samples > 1:
        cache.batch_repeat_interleave(samples)
        mask = mask.repeat_interleave(samples, 0)
    position = mask.sum(-1, keepdim=True)
    tokens = torch.tensor([prompts[i][-1] for i in order], device=lm.device).repeat_interleave(samples)
    rows = [Decoded() for _ in range(len(prompts) * samples)]
    numbers = [number * samples + sample for number in order for sample in range(samples)]
    numbers = torch.tensor(numbers, device=lm.device)  # of the rows that are still in the batch
    running = torch.ones_like(numbers, dtype=torch.bool)
    stop = torch.tensor(lm.stop_ids, device=lm.device)
    for step in range(max_new_tokens):
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], -1)
        where = {"attention_mask": mask, "position_ids": position}
        output = lm.model(input_ids=tokens[:, None], past_key_values=cache, use_cache=True, **where)
        position = position + 1

        def choose(logprobs: Tensor, some: slice, step: int = step, numbers: Tensor = numbers) -> Tensor:
            return pick(logprobs, step, numbers[some])

        tokens, chosen, entropies = facts_of(output.logits[:, -1], choose)
        del output  # its logits would stand beside those of the next step
        ends = torch.isin(tokens, stop)
        columns = (numbers, tokens, ends, running, chosen, entropies)
        for number, token, end, alive, logprob, entropy in zip(*(c.tolist() for c in columns), strict=True):
            if alive and end:
                rows[number].ended, rows[number].end_logprob = True, logprob
            elif alive:
                rows[number].ids.append(token)
                rows[number].logprobs.append(logprob)
                rows[number].entropies.append(entropy)
        running &= ~ends
        if not running.any():
            break
        if running.sum() <= 0.75 * len(running):  # let go of the rows that have ended
            kept = running.nonzero()[:, 0]
            cache.keep(kept)
            numbers, tokens, mask, position, running = (t[kept] for t in (numbers, tokens, mask, position, running))
    return [rows[i * samples : (i + 1) * samples] for i in range(len(prompts))]


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
    flat = [(place, row) for place, number in enumerate(order) for row in continuations[number]]
    made = [Decoded(row) for _, row in flat]
    room = LOGITS[lm.device.type == "cuda"] // lm.model.config.get_text_config().vocab_size
    for part in batches_by_tokens([len(row) for _, row in flat], room):
        owners = [flat[i][0] for i in part]
        own, before = rows_of(cache, owners, len(prompts)), mask[owners]
        length = max(len(flat[i][1]) for i in part)
        given = [padded([prompts[order[place]][-1], *row], length + 1) for place, row in map(flat.__getitem__, part)]
        given = torch.tensor(given, device=lm.device)
        there = torch.tensor([padded([1] * len(flat[i][1]), length) for i in part], device=lm.device)
        logits = lm.model(
            input_ids=given[:, :-1],
            attention_mask=torch.cat([before, there], -1),
            position_ids=before.sum(-1, keepdim=True) + torch.arange(length, device=lm.device),
            past_key_values=own,
            use_cache=True,
        ).logits
        tokens = given[:, 1:].flatten()
        _, chosen, entropies = facts_of(logits.flatten(0, 1), lambda _, some, tokens=tokens: tokens[some])
        for k, i in enumerate(part):
            mine = slice(k * length, k * length + len(flat[i][1]))
            made[i].logprobs, made[i].entropies = chosen[mine].tolist(), entropies[mine].tolist()
    results = iter(made)
    found = {number: [next(results) for _ in continuations[number]] for number in order}
    return [found[number] for number in range(len(prompts))]


def rows_of(cache: PromptCache, rows: list[int], number: int) -> PromptCache:
    """Some rows of a cache that holds a number of them, as a cache of their own; the first goes on as it is."""
    made = copy.copy(cache)
    made.layers = [copy.copy(layer) for layer in cache.layers]
    if rows != list(range(number)):
        made.batch_select_indices(torch.tensor(rows, device=cache.layers[0].device))
    return made


def padded(row: list[int], length: int, filler: int = 0, left: bool = False) -> list[int]:
    """The row with fillers at its end, or on its left."""
    fillers = [filler] * (length - len(row))
    return fillers + row if left else row + fillers
