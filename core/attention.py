"""Torch's attention on a CPU, with masks as the numbers that it adds to its scores.

Given a mask of true and false it makes these numbers anew in every layer, for every row.
"""

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "sdpa_with_numbers"


def mask_of_numbers(*given, dtype: torch.dtype = torch.float32, **how) -> Tensor | None:
    """`sdpa_mask` as 0 where a token is seen and -inf where it is not; one row where all are the same."""
    mask = sdpa_mask(*given, **how)
    if mask is None:
        return None
    if mask.stride(0) == 0:
        mask = mask[:1]
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf)


def use_masks_of_numbers(model: PreTrainedModel) -> None:
    """Let a model that uses Torch's attention be given such masks."""
    if model.config.get_text_config()._attn_implementation == "sdpa":
        AttentionInterface.register(NAME, sdpa_attention_forward)
        AttentionMaskInterface.register(NAME, mask_of_numbers)
        model.set_attn_implementation(NAME)
