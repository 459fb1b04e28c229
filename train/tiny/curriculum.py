"""The tiny model's curriculum: copying tokens, then key-value records, then reading documents."""

import math
import random
from dataclasses import dataclass

from transformers import PreTrainedTokenizerFast

from train.tiny.entities import ATTRIBUTES, GRAMMAR, listed_values
from train.tiny.lessons import distractor_reading, final_lesson, mixed_lesson, recall
from train.tiny.packing import EncodedBranch
from train.tiny.tokenizer import encode


@dataclass(frozen=True)
class Level:
    """The episodes of a level, and their training settings."""

    lesson: str  # copying, records or words
    mastery: float  # accuracy in test episodes that ends the level
    episodes: int  # episodes per step, as a multiple of the batch size; higher for levels with short episodes
    prompt_weight: float = 0.0  # weight of the loss on prompt tokens; 0 if they are random
    filler: int = 0  # maximum number of filler tokens in a record
    documents: int = 0  # maximum number of documents


LEVELS = (
    Level("copying", mastery=0.6, episodes=4),
    *(Level("records", mastery=0.85, episodes=4, filler=filler) for filler in range(7)),
    Level("words", mastery=0.85, episodes=2, prompt_weight=0.1),
    Level("words", mastery=0.6, episodes=1, prompt_weight=0.1, documents=2),
    Level("words", mastery=math.inf, episodes=1, prompt_weight=0.1, documents=3),
)


class Curriculum:
    """Samples encoded episodes."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        self.tokenizer, self.tokens = tokenizer, token_sets(tokenizer)
        self.marker = tokenizer.convert_tokens_to_ids("<|assistant|>")

    def episode(self, rng: random.Random, level: Level, final: bool = False) -> list[EncodedBranch]:
        """Sample a training episode of a level; `final` replaces reading by the final lessons."""
        if level.lesson == "copying":
            return copying(rng, self.tokens)
        if level.lesson == "records":
            return records(rng, self.tokens, level.filler, self.marker)
        is_final = final and level.documents
        branches = final_lesson(rng, "lm") if is_final else mixed_lesson(rng, "lm", level.documents)
        return encode(self.tokenizer, branches)

    def test_episode(self, rng: random.Random, level: Level) -> list[EncodedBranch]:
        """Sample an episode with unseen names whose context contains every answer."""
        if level.lesson != "words":
            return self.episode(rng, level)
        documents = level.documents
        branches = distractor_reading(rng, "dev", documents, answerable=1.0) if documents else recall(rng, "dev")
        return encode(self.tokenizer, branches)


def token_sets(tokenizer: PreTrainedTokenizerFast) -> list[list[int]]:
    """Ids of the tokens of name syllables, of listed words, of digits, and of the other words in the grammar."""
    templates = [text for attribute in ATTRIBUTES for text in attribute["says"] + attribute["asks"]]
    texts = [
        [f" {start}{end}" for start in GRAMMAR["starts"] for end in GRAMMAR["ends"]],
        [f" {word}" for word in [*listed_values(), *GRAMMAR["given"]]],
        list("0123456789"),
        [f" {word}" for template in templates for word in template.split() if word.isalpha()],
    ]
    sets = [{token for ids in tokenizer(group)["input_ids"] for token in ids} for group in texts]
    return [sorted(ids) for ids in (*sets[:3], sets[3] - sets[0] - sets[1] - sets[2])]


def copying(rng: random.Random, tokens: list[list[int]]) -> list[EncodedBranch]:
    """Sample random tokens in which a span repeats; the target is the rest of the repetition."""

    def noise(least: int, most: int) -> list[int]:
        return [rng.choice(rng.choices(tokens[:3], [6, 3, 1])[0]) for _ in range(rng.randint(least, most))]

    span = noise(3, 8)
    return [(noise(1, 10) + span + noise(1, 10) + span[:1], span[1:])]


def records(rng: random.Random, tokens: list[list[int]], filler: int, marker: int) -> list[EncodedBranch]:
    """Sample key-value records; each branch asks for the value of a key with `marker`.

    Up to `filler` tokens, the same in all records, separate keys from values. They are small steps from copying to
    recall.
    """
    syllables, words, digits, others = tokens
    keys = [rng.choices(syllables, k=2) for _ in range(rng.randint(2, 6))]
    values = [rng.choices(rng.choice([words, digits]), k=rng.randint(1, 2)) for _ in keys]
    between, asking = (rng.choices(others, k=rng.randint(0, filler)) for _ in range(2))
    end = rng.choices(others, k=1)
    prefix = [token for key, value in zip(keys, values, strict=True) for token in key + between + value + end]
    chosen = rng.sample(range(len(keys)), min(5, len(keys)))
    return [(prefix + keys[i] + asking + [marker], values[i] + end) for i in chosen]
