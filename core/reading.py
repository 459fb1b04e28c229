"""Reading prompts: keys and values of many, padded little, what they share read once, ready for what follows."""

import copy
from contextlib import suppress

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from core.attention import keys_at_once
from core.beginnings import passes_of
from core.language_model import LanguageModel
from core.workspace import workspace

READ = 1024  # tokens that a CPU reads in one pass, if a row is not longer


class _Read(Exception):
    """Raised when the cache has the keys and values of every layer."""


class _NotANumber(Exception):
    """Raised when rows go on from one that is not finite: a token of it that no other row has spoils them all."""


class PromptCache(DynamicCache):
    """A cache that, while `reading`, ends the pass as soon as its last layer is filled: what that layer goes on to
    compute at the prompt's tokens nobody looks at."""

    reading = False

    @property
    def goes_back(self) -> bool:
        """Whether tokens may be taken back, and others masked: what a layer holds does not depend on their number."""
        return all(type(layer) in (DynamicLayer, RoomyLayer) for layer in self.layers)

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        keys, values = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        if self.reading and layer_idx == len(self.layers) - 1:
            before = values[:, :, : getattr(self.layers[layer_idx], "before", 0)]
            raise _Read if before.sum(dtype=torch.float32).isfinite() else _NotANumber
        return keys, values

    def some(self, rows: slice) -> "PromptCache":
        """Some rows, from which to go on, while this cache stays as it is."""
        made = copy.copy(self)
        made.layers = [copy.copy(layer) for layer in self.layers]
        for layer in made.layers:
            if isinstance(layer, RoomyLayer):
                layer.select(rows)
            else:
                layer.batch_select_indices(torch.arange(rows.start, rows.stop))
        return made

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
    which the rows of a pass go on, None once all are read. Their first `before` slots are taken over. A pass sees a
    multiple of `multiple` slots, those after its tokens masked.
    """

    def __init__(self, rows: int, length: int, room: int, multiple: int):
        super().__init__()
        self.all_rows, self.length, self.room, self.multiple = rows, length, room, multiple
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

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.seen(self.get_seq_length() + query_length, query_length), 0

    def seen(self, end: int, tokens: int) -> int:
        """Slots that a pass of so many tokens up to `end` sees; one token gets no mask that could hide more."""
        return end if self.sources is None or tokens == 1 else up_to(end, self.multiple)

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
        before, tokens = self.before, both[0].shape[2]
        end = before + tokens
        rows = slice(self.read, self.read + len(self.sources))
        self.read = rows.stop
        for whole, states in zip(self.whole, both, strict=True):
            for row, source in enumerate(self.sources if before else [], rows.start):
                whole[row, :, :before] = whole[source, :, :before]
            whole[rows, :, before:end] = states
            whole[rows, :, end : self.length] = 0
        return tuple(whole[rows, :, : self.seen(end, tokens)] for whole in self.whole)

    def keep(self, rows: list[int]) -> None:
        """Let go of all but some rows, in rising order; these move together where they stand."""
        length = self.get_seq_length()
        for whole in self.whole:
            for new, old in enumerate(rows):
                if new != old:
                    whole[new, :, :length] = whole[old, :, :length]
        self.select(slice(len(rows)))

    def select(self, rows: slice) -> None:
        """See some rows alone, where they stand."""
        length, self.whole = self.get_seq_length(), tuple(whole[rows] for whole in self.whole)
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
    window = getattr(lm.model.config.get_text_config(), "sliding_window", None)
    left = bool(window) and window < length + room
    cache = PromptCache(config=lm.model.config)
    plain = all(type(layer) is DynamicLayer for layer in cache.layers)
    if left or not plain or not all(rows) or lm.device.type != "cpu":
        mask = [padded([1] * len(row), length, 0, left) for row in rows]
        mask = torch.tensor(mask, dtype=torch.long, device=lm.device)
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
    multiple = keys_at_once(lm.model)
    length = up_to(max(map(len, rows)), multiple)
    mask = torch.tensor([padded([1] * len(rows[number]), length) for number in order])
    workspace.begin(2 * len(cache.layers))
    cache.layers = [RoomyLayer(len(rows), length, room, multiple) for _ in cache.layers]
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


def up_to(length: int, multiple: int) -> int:
    """The least multiple that is not below a length."""
    return -(-length // multiple) * multiple


def padded(row: list[int], length: int, filler: int = 0, left: bool = False) -> list[int]:
    """The row with fillers at its end, or on its left."""
    fillers = [filler] * (length - len(row))
    return fillers + row if left else row + fillers
