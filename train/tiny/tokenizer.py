"""The tiny model's tokenizer and chat template, and the encoding of episodes."""

import random

from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer

from core.records import Message
from train.tiny.entities import GRAMMAR, listed_values
from train.tiny.lessons import Branch, mixed_lesson
from train.tiny.packing import EncodedBranch

SPECIAL_TOKENS = ["<|endoftext|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|> ' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def make_tokenizer(seed: int, size: int = 1792, episodes: int = 1500) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer with `size` tokens, otherwise like Qwen2's, on the text of random episodes."""
    rng = random.Random(f"{seed} tokenizer")
    texts = [
        " " + text
        for _ in range(episodes)
        for branch in mixed_lesson(rng, "lm", documents=3)[:2]
        for text in [*(message["content"] for message in branch.messages), branch.target]
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


def render(messages: list[Message]) -> str:
    """`CHAT_TEMPLATE` with the generation prompt in plain Python: faster than Jinja."""
    return "".join(f"<|{m['role']}|> {m['content']}<|end|>" for m in messages) + "<|assistant|>"


def encode(tokenizer: PreTrainedTokenizerFast, branches: list[Branch]) -> list[EncodedBranch]:
    """Encode the branches of an episode; each target ends with the end-of-turn token."""
    texts = [text for branch in branches for text in (render(branch.messages), f" {branch.target}<|end|>")]
    ids = [encoding.ids for encoding in tokenizer.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    return list(zip(ids[::2], ids[1::2], strict=True))
