"""Torch's attention on a CPU, with masks as the numbers that it adds to its scores.

Given a mask of true and false it makes these numbers anew in every layer, for every row. What is left over when keys
are divided into `KEYS` it computes one by one, which takes up to a third more time.
"""

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "sdpa_with_numbers"
KEYS = 16  # numbers of a float32 vector of AVX-512


def mask_of_numbers(*given, dtype: torch.dtype = torch.float32, **how) -> Tensor | None:
    """`sdpa_mask` as 0 where a token is seen and -inf where it is not; one row where all are the same."""
    mask = sdpa_mask(*given, **how)
    if mask is None:
        return None
    if mask.stride(0) == 0:
        mask = mask[:1]
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf)


def has(model: PreTrainedModel, name: str) -> bool:
    """Whether a model's attention is the one by that name."""
    return model.config.get_text_config()._attn_implementation == name


def use_masks_of_numbers(model: PreTrainedModel) -> None:
    """Let a model that uses Torch's attention be given such masks."""
    if has(model, "sdpa"):
        AttentionInterface.register(NAME, sdpa_attention_forward)
        AttentionMaskInterface.register(NAME, mask_of_numbers)
        model.set_attn_implementation(NAME)


def keys_at_once(model: PreTrainedModel) -> int:
    """The number of which a model's keys should be a multiple, where masks may have more columns than there are."""
    return KEYS if has(model, NAME) else 1
