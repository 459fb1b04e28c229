"""Memory that one batch after another uses."""

import math
import threading

import torch
from torch import Tensor


class Workspace(threading.local):
    """Memory in which the caches of a thread, one after another, have their keys and values.

    Fresh memory costs a page fault every 4 KB, and what is freed leaves holes that the next batch does not fit into.
    """

    memory = torch.empty(0)
    parts = used = 0

    def begin(self, parts: int) -> None:
        """A cache of so many tensors begins; the one before is no longer used."""
        self.parts, self.used = parts, 0

    def take(self, like: Tensor, *shape: int) -> Tensor:
        """A tensor for the cache; of its own where the tensors of a cache are not of one size."""
        size = math.prod(shape)
        if not self.used and (self.memory.dtype != like.dtype or len(self.memory) < self.parts * size):
            self.memory = like.new_empty(0)  # first let go of what there was
            self.memory = like.new_empty(self.parts * size)
        part = self.memory[self.used : self.used + size]
        self.used += size
        return part.view(shape) if len(part) == size else like.new_empty(shape)

    def release(self) -> None:
        """Give the memory back."""
        self.memory = torch.empty(0)


workspace = Workspace()
