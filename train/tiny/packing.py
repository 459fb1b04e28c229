"""Packed sequences: the branches of an episode behind their common prefix, kept apart by a tree attention mask."""

from dataclasses import dataclass

import torch
from torch import Tensor

EncodedBranch = tuple[list[int], list[int]]  # token ids of prompt and target


@dataclass
class PackedSequence:
    """The branches of one episode in one sequence; every list has an entry per token."""

    tokens: list[int]
    branches: list[int]  # 0 in the common prefix, then the number of the branch from 1
    positions: list[int]  # distance from the start of the branch's own prompt
    labels: list[int]  # the next token; -100 at the end of the prefix and of each branch
    is_target: list[float]  # 1.0 where the label belongs to a target, 0.0 where it belongs to a prompt

    def __len__(self) -> int:
        return len(self.tokens)


def pack(episode: list[EncodedBranch]) -> PackedSequence:
    """Pack the branches of an episode; each keeps at least the last token of its prompt."""
    prompts = [prompt for prompt, _ in episode]
    shared = 0
    while all(len(prompt) > shared + 1 and prompt[shared] == prompts[0][shared] for prompt in prompts):
        shared += 1
    prefix = prompts[0][:shared]
    packed = PackedSequence(prefix, [0] * shared, list(range(shared)), [*prefix[1:], -100], [0.0] * shared)
    for number, (prompt, target) in enumerate(episode, 1):
        own = prompt[shared:] + target
        packed.tokens += own
        packed.branches += [number] * len(own)
        packed.positions += range(shared, shared + len(own))
        packed.labels += [*own[1:], -100]
        packed.is_target += [0.0] * (len(own) - len(target) - 1) + [1.0] * len(target) + [0.0]
    return packed


def collate(sequences: list[PackedSequence], pad: int) -> dict[str, Tensor]:
    """A batch of packed sequences, padded on the right.

    Returns:
        `input_ids`, `position_ids`, `branches`, `labels` and `is_target` [batch, length], and `attention_mask`
        [batch, 1, length, length]: True where a token attends to the prefix or to its own branch before it.
    """
    length = max(map(len, sequences))

    def padded(name: str, fill: float) -> Tensor:
        rows = [getattr(sequence, name) for sequence in sequences]
        return torch.tensor([row + [fill] * (length - len(row)) for row in rows])

    branches = padded("branches", -1)
    visible = (branches[:, :, None] == branches[:, None, :]) | (branches[:, None, :] == 0)
    return {
        "input_ids": padded("tokens", pad),
        "position_ids": padded("positions", 0),
        "branches": branches,
        "labels": padded("labels", -100),
        "is_target": padded("is_target", 0.0),
        "attention_mask": (visible & torch.ones(length, length, dtype=torch.bool).tril())[:, None],
    }
