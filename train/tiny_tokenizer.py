"""The tiny language model's tokenizer."""

import random
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from train.tiny_lessons import CHAT_TEMPLATE, episode, listed_words
from train.tiny_world import grammar

SPECIAL = ["<|endoftext|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]


def make_tokenizer(seed: int, size: int = 1792, episodes: int = 1500) -> PreTrainedTokenizerFast:
    """Byte-level BPE trained on the world's text, as Qwen2's (`AutoTokenizer` goes by the model's type)."""
    rng = random.Random(f"{seed} tokenizer")
    texts = [
        " " + message["content"]
        for _ in range(episodes)
        for branch in episode(rng, "lm", 3)[:2]
        for message in [*branch.messages, {"content": branch.target}]
    ]
    whole = [*listed_words(), *grammar()["given"], *grammar()["starts"]]
    texts += [*(f" {word}" for word in whole), *grammar()["ends"]] * 2000
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return chat_tokenizer(tokenizer)


def chat_tokenizer(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """A trained tokenizer with the special tokens' roles and the chat template."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|endoftext|>",
        eos_token="<|end|>",
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
    )


def load_chat_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a model that `train.tiny_model` has made; Transformers' loading would leave marks in it."""
    return chat_tokenizer(Tokenizer.from_file(str(folder / "tokenizer.json")))
