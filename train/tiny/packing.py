"""Packed sequences: the branches of an episode after their common prefix, separated by a tree attention mask."""

import torch
from torch import Tensor

EncodedBranch = tuple[list[int], list[int]]  # token ids of prompt and target
PADDING = {"input_ids": 0, "position_ids": 0, "branches": -1, "labels": -100, "is_target": 0.0}


def pack(episode: list[EncodedBranch]) -> dict[str, list]:
    """Pack the branches of an episode. Each branch keeps at least the last token of its prompt.

    Returns:
        Lists with one value per token: `input_ids`; `position_ids`, the position in the branch's text; `branches`, 0
        in the prefix, then counted from 1; `labels`, the next token, or -100 at the end of the prefix and of each
        branch; `is_target`, 1.0 if the label belongs to a target, else 0.0.
    """
    prompts = [prompt for prompt, _ in episode]
    shared = 0
    while all(len(prompt) > shared + 1 and prompt[shared] == prompts[0][shared] for prompt in prompts):
        shared += 1
    input_ids, position_ids, branches = prompts[0][:shared], list(range(shared)), [0] * shared
    labels, is_target = [*input_ids[1:], -100], [0.0] * shared
    for number, (prompt, target) in enumerate(episode, 1):
        own = prompt[shared:] + target
        input_ids += own
        position_ids += range(shared, shared + len(own))
        branches += [number] * len(own)
        labels += [*own[1:], -100]
        is_target += [0.0] * (len(own) - len(target) - 1) + [1.0] * len(target) + [0.0]
    return dict(zip(PADDING, (input_ids, position_ids, branches, labels, is_target), strict=True))


def collate(
    sequences: list[dict[str, list]], device: torch.device | None = None
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Pad packed sequences on the right.

    Returns:
        The model's inputs: `input_ids` and `position_ids` [batch, length], and `attention_mask` [batch, 1, length,
        length], True for earlier tokens in the prefix and in the token's own branch. Then `branches`, `labels` and
        `is_target` [batch, length].
    """
    length = max(len(sequence["input_ids"]) for sequence in sequences)
    batch = {
        name: torch.tensor([s[name] + [padding] * (length - len(s[name])) for s in sequences], device=device)
        for name, padding in PADDING.items()
    }
    queries, keys = batch["branches"][:, None, :, None], batch["branches"][:, None, None, :]
    before = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    inputs = {"input_ids": batch.pop("input_ids"), "position_ids": batch.pop("position_ids")}
    return inputs | {"attention_mask": ((queries == keys) | (keys == 0)) & before}, batch
