"""Parts of Transformers' models in fewer passes over memory, for a CPU.

Half the time of a small model goes to what stands between its products, and most of that to memory. Where a part has
the very text of Llama's, as in Qwen, Mistral and many other models, the form below takes its place; its numbers are
the same but for the last digit.
"""

import inspect
import sys
from collections.abc import Callable
from functools import cache
from types import MethodType

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.llama import modeling_llama as llama

from core.attention import use_masks_of_numbers

ROTARY, ROTATE_HALF = llama.apply_rotary_pos_emb, llama.rotate_half


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
    """`apply_rotary_pos_emb`: each half of a head is turned where it stands; as it was for models other than of
    `fit_to_cpu` and outside inference."""
    if not torch.is_inference_mode_enabled() or (q.dtype, q.device.type) != (torch.float32, "cpu"):
        return ROTARY(q, k, cos, sin, unsqueeze_dim)
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    half = cos.shape[-1] // 2
    turned = q * cos, k * cos
    for given, made in zip((q, k), turned, strict=True):
        made[..., :half].addcmul_(given[..., half:], sin[..., :half], value=-1)
        made[..., half:].addcmul_(given[..., :half], sin[..., half:])
    return turned


def norm(self: nn.Module, hidden_states: Tensor) -> Tensor:
    """`LlamaRMSNorm.forward` in float32."""
    scale = hidden_states.square().mean(-1, keepdim=True).add_(self.variance_epsilon).rsqrt_()
    return (hidden_states * scale).mul_(self.weight)


def mlp(self: nn.Module, x: Tensor) -> Tensor:
    """`LlamaMLP.forward`."""
    return self.down_proj(self.act_fn(self.gate_proj(x)).mul_(self.up_proj(x)))


def fit_to_cpu(model: PreTrainedModel) -> None:
    """Give a model on a CPU these parts, if it is a float32 one, and masks of numbers; it cannot be trained then.

    The norms and MLPs of this model alone are changed, the rotary embedding for all models of its family.
    """
    if model.device.type != "cpu":
        return
    use_masks_of_numbers(model)
    if model.dtype != torch.float32:
        return
    for module in model.modules():
        forward = type(module).forward
        if text(forward) == text(llama.LlamaRMSNorm.forward):
            module.forward = MethodType(norm, module)
        elif text(forward) == text(llama.LlamaMLP.forward):
            module.forward = MethodType(mlp, module)
            if isinstance(module.act_fn, nn.SiLU):
                module.act_fn.inplace = True
        home = sys.modules[type(module).__module__]
        found = getattr(home, "apply_rotary_pos_emb", None), getattr(home, "rotate_half", None)
        if list(map(text, found)) == [text(ROTARY), text(ROTATE_HALF)]:
            home.apply_rotary_pos_emb = rotary


@cache
def text(function: Callable | None) -> str:
    """The text of a function, or its name where there is none."""
    try:
        return inspect.getsource(function)
    except (TypeError, OSError):
        return repr(function)
