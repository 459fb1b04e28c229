"""Small random models of every family, built from their configs, and inputs for them."""

import copy

import torch
from tokenizers import processors
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)  # fmt: skip

from core.language_model import PLAIN_TEMPLATE, LanguageModel
from core.records import GenerationInput
from tests.conftest import small_tokenizer
from train.tiny.tokenizer import CHAT_TEMPLATE

TURN = "{% for m in messages %}{{ '<|' + m['role'] + '|> ' + m['content'] + '<|end|>' }}{% endfor %}"
ASK = "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
SIZES = dict(hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
FAMILIES = {
    "llama": (LlamaForCausalLM, LlamaConfig, SIZES, "{{ bos_token }}" + TURN + ASK),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, SIZES, CHAT_TEMPLATE),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, SIZES | {"head_dim": 16}, CHAT_TEMPLATE),
    "mistral": (MistralForCausalLM, MistralConfig, SIZES | {"sliding_window": 24}, "{{ bos_token }}" + TURN + ASK),
    "gemma2": (
        Gemma2ForCausalLM, Gemma2Config, SIZES | {"head_dim": 16, "sliding_window": 32},
        NO_SYSTEM + "{{ bos_token }}" + TURN + ASK,
    ),
    "gpt2": (GPT2LMHeadModel, GPT2Config, {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 1024}, None),
}  # fmt: skip
HISTORY = [{"role": "user", "content": "Who made it?"}, {"role": "assistant", "content": "Ann Lee"}]
READINGS = [
    GenerationInput.of([], "Where was Talpa born?", ["Talpa was born in Port Verna."]),
    GenerationInput.of(
        HISTORY, "Where was she born?", ["One text.", "A much longer text about a lake by the sea.", "Third."]
    ),
    GenerationInput.of(HISTORY, "Where was she born?", ["One text."]),
]


def family(kind: str, dtype: torch.dtype = torch.float32, seed: int = 3) -> LanguageModel:
    """A random model with a tokenizer that adds a BOS by itself, as Llama's and Gemma's do."""
    model_class, config_class, sizes, template = FAMILIES[kind]
    tokenizer = copy.deepcopy(small_tokenizer())
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tokenizer.bos_token_id)]
    )
    tokenizer.chat_template = template or PLAIN_TEMPLATE
    torch.manual_seed(seed)
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = config_class(vocab_size=len(tokenizer), **sizes, **ids, bos_token_id=tokenizer.bos_token_id)
    model = model_class(config).to(dtype).eval()
    with torch.no_grad():  # without scaling, random weights repeat one token and all entropies are equal
        for weight in model.parameters():
            weight.mul_(2.0 if weight.ndim == 2 else 1.0)
    return LanguageModel(kind, model, tokenizer)
