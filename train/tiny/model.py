"""The untrained tiny model, and the optimizer of its weight matrices."""

import math

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM


def new_model(tokenizer: PreTrainedTokenizerFast, seed: int, width: int = 128, layers: int = 5) -> Qwen2ForCausalLM:
    """Build a Qwen2 with random weights, in which two heads of the first layer attend to the previous two tokens."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 32,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen2ForCausalLM(config)
    for head, distance in enumerate((1, 2)):
        attend_back(model, head, distance)
    return model


@torch.no_grad()
def attend_back(model: Qwen2ForCausalLM, head: int, distance: int) -> None:
    """Initialize a head of the first layer so that it attends to the token `distance` positions back.

    Copying requires this attention, which training alone learns late. Rotary embeddings rotate the biases of queries
    and keys by their positions, so query biases that lag the key biases by `distance` rotations match best there.
    """
    attention, theta = model.model.layers[0].self_attn, model.config.rope_parameters["rope_theta"]
    size, norm = attention.head_dim, 40**0.5
    for i in range(3):  # the highest frequencies
        first, second, angle = head * size + i, head * size + i + size // 2, -distance * theta ** (-2 * i / size)
        attention.k_proj.bias[first] = norm
        attention.q_proj.bias[first] = norm * math.cos(angle)
        attention.q_proj.bias[second] = norm * math.sin(angle)


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalized updates (https://kellerjordan.github.io/posts/muon/), scaled to the size of AdamW's
    updates, so that its learning rates apply.

    `torch.optim.Muon` computes in bfloat16, which is 20 times slower on processors without bfloat16 units.
    """

    def __init__(self, matrices: list[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.01):
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                momentum.lerp_(parameter.grad, 1 - group["momentum"])
                update = orthogonalize(parameter.grad.lerp(momentum, group["momentum"]))
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update, alpha=-0.2 * max(update.shape) ** 0.5 * group["lr"])


def orthogonalize(matrix: Tensor) -> Tensor:
    """Push the singular values of a matrix toward 1 by five steps of a quintic Newton-Schulz iteration."""
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x
