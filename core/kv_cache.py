"""Key-value caches that grow without copying."""

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

SPARE_SLOTS = 64  # number of tokens by which a buffer grows


class GrowingLayer(DynamicLayer):
    """A cache layer that writes new tokens into a larger buffer; `DynamicLayer` copies all tokens at every step."""

    buffers: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if self.buffers is None or self.buffers[0].shape[-2] < end:
            self.buffers = tuple(
                torch.cat([stored, new.new_empty(*new.shape[:2], end + SPARE_SLOTS - start, new.shape[-1])], -2)
                for stored, new in ((self.keys, key_states), (self.values, value_states))
            )
        for buffer, states in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[:, :, start:end] = states
        self.keys, self.values = (buffer[:, :, :end] for buffer in self.buffers)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self.buffers = None


def new_cache(model: PreTrainedModel) -> Cache:
    """An empty cache for the layers of a model."""
    layers = DynamicCache(config=model.config).layers
    return Cache(layers=[GrowingLayer() if type(layer) is DynamicLayer else layer for layer in layers])
