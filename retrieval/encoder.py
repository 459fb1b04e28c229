"""A text encoder: texts to vectors by a Transformers model, a pooling of its token states, and what comes after.

Imports torch: import it inside functions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from core.batching import batches_by_tokens
from core.errors import InputError


def mean(states: Tensor, mask: Tensor) -> Tensor:
    """The mean state of a row's tokens."""
    weights = mask[..., None].to(states.dtype)
    return (states * weights).sum(1) / weights.sum(1)


def maximum(states: Tensor, mask: Tensor) -> Tensor:
    """The largest value of each dimension over a row's tokens."""
    return states.masked_fill(mask[..., None] == 0, float("-inf")).amax(1)


def first(states: Tensor, mask: Tensor) -> Tensor:
    """The state of a row's first token, wherever it is padded."""
    return states[torch.arange(len(states), device=states.device), mask.argmax(1)]


def last(states: Tensor, mask: Tensor) -> Tensor:
    """The state of a row's last token, wherever it is padded."""
    return states[torch.arange(len(states), device=states.device), mask.shape[1] - 1 - mask.flip(1).argmax(1)]


POOLINGS = {"mean": mean, "cls": first, "max": maximum, "lasttoken": last}
"""Name -> function of token states [rows, length, width] and mask [rows, length] to vectors [rows, width]."""


@dataclass
class Encoder:
    """A loaded encoder, in evaluation mode.

    `name` is what the user wrote; `identity` tells its weights and files from others. `heads` come after the pooling;
    `max_length` is in tokens, prefix and special tokens included; `batch_tokens` bounds a padded batch.
    """

    name: str
    identity: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    max_length: int
    pooling: str = "mean"
    heads: nn.Sequential = field(default_factory=nn.Sequential)
    normalize: bool = False
    lower: bool = False
    query_prefix: str = ""
    passage_prefix: str = ""
    batch_tokens: int = 16384

    @property
    def plan(self) -> dict[str, Any]:
        """All that decides the vector of a passage."""
        return {
            "encoder": self.identity,
            "pooling": self.pooling,
            "normalize": self.normalize,
            "passage_prefix": self.passage_prefix,
            "max_length": self.max_length,
            "dtype": str(self.model.dtype),
        }

    def queries(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of queries, float32 [texts, width]."""
        return self._encode([self.query_prefix + text for text in texts])

    def passages(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of passages, float32 [texts, width]."""
        return self._encode([self.passage_prefix + text for text in texts])

    @torch.inference_mode()
    def _encode(self, texts: list[str]) -> np.ndarray:
        """Vectors of texts, computed longest first in batches of at most `batch_tokens` tokens.

        Raises:
            InputError: a text has no token, or its vector is not finite.
        """
        given = [text.lower() for text in texts] if self.lower else texts
        rows = self.tokenizer(given, truncation=True, max_length=self.max_length)["input_ids"]
        lengths = [len(row) for row in rows]
        if 0 in lengths:
            raise InputError(
                f"`retrieval.encoder`: {self.name} makes no token of the text {texts[lengths.index(0)]!r:.60}."
            )
        found: list[np.ndarray | None] = [None] * len(rows)
        for batch in batches_by_tokens(lengths, self.batch_tokens):
            inputs = self.tokenizer.pad({"input_ids": [rows[i] for i in batch]}, return_tensors="pt")
            ids, mask = (inputs[name].to(self.model.device) for name in ("input_ids", "attention_mask"))
            states = self.model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
            vectors = self.heads(POOLINGS[self.pooling](states, mask))
            if self.normalize:
                vectors = nn.functional.normalize(vectors, dim=-1)
            for i, vector in zip(batch, vectors.cpu().numpy(), strict=True):
                if not np.isfinite(vector).all():
                    raise InputError(
                        f"`retrieval.encoder`: {self.name} gives a vector that is not finite for the text "
                        f"{texts[i]!r:.60}; try `--retrieval.dtype float32`."
                    )
                found[i] = vector
        return np.stack(found)
