"""The tiny model's tokenizer and chat template, and the encoding of episodes."""

import random

from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer

from train.tiny.entities import GRAMMAR, listed_values
from train.tiny.lessons import Branch, mixed_lesson
from train.tiny.packing import EncodedBranch

SPECIAL_TOKENS = ["<|endoftext|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|> ' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def make_tokenizer(seed: int, size: int = 1792, episodes: int = 1500) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer like Qwen2's, but with `size` tokens, on the text of random episodes."""
    rng = random.Random(f"{seed} tokenizer")
    texts = [
        " " + text
        for _ in range(episodes)
        for messages, target in mixed_lesson(rng, "lm", documents=3)[:2]
        for text in [*(message["content"] for message in messages), target]
    ]
    words = [*listed_values(), *GRAMMAR["given"], *GRAMMAR["starts"]]
    texts += [*(f" {word}" for word in words), *GRAMMAR["ends"]] * 2000
    bpe = {"vocab_size": size, "special_tokens": SPECIAL_TOKENS, "initial_alphabet": ByteLevel.alphabet()}
    tokenizer = Qwen2Tokenizer().backend_tokenizer
    tokenizer.post_processor = None
    tokenizer.train_from_iterator(texts, BpeTrainer(**bpe, show_progress=False))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|endoftext|>",
        eos_token="<|end|>",
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
    )


def encode(tokenizer: PreTrainedTokenizerFast, branches: list[Branch]) -> list[EncodedBranch]:
    """Encode the branches of an episode; each target ends with the end-of-turn token."""
    conversations, targets = [messages for messages, _ in branches], [f" {target}<|end|>" for _, target in branches]
    prompts = tokenizer.apply_chat_template(conversations, add_generation_prompt=True)["input_ids"]
    return list(zip(prompts, tokenizer(targets)["input_ids"], strict=True))
