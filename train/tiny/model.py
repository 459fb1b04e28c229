"""The tiny model before training."""

import math

import torch
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM


def new_model(tokenizer: PreTrainedTokenizerFast, seed: int, width: int = 128, layers: int = 5) -> Qwen2ForCausalLM:
    """A Qwen2 with tied embeddings and random weights; two heads of the first layer attend to the previous tokens."""
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
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation="sdpa",
    )
    model = Qwen2ForCausalLM(config)
    for head, distance in enumerate((1, 2)):
        attend_back(model, head, distance)
    return model


@torch.no_grad()
def attend_back(model: Qwen2ForCausalLM, head: int, distance: int, strength: float = 40.0) -> None:
    """Let a head of the first layer start out attending to the token `distance` places back.

    Copying a name requires knowing which token came before; training finds that by itself, but late. Rotary
    embeddings rotate the biases of queries and keys by their positions: a query bias that lags the key's by
    `distance` rotations makes their product largest there. `strength` is the squared norm of each of these biases at
    the three highest frequencies.
    """
    attention, theta = model.model.layers[0].self_attn, model.config.rope_parameters["rope_theta"]
    size, norm = attention.head_dim, strength**0.5
    for i in range(3):
        angle = -distance * theta ** (-2 * i / size)
        first, second = head * size + i, head * size + i + size // 2
        attention.k_proj.bias[first] = norm
        attention.q_proj.bias[first] = norm * math.cos(angle)
        attention.q_proj.bias[second] = norm * math.sin(angle)
