"""What the tiny language model learns from: rewriting, reading and abstaining, each in a fresh world of invented
entities.

Several questions share one set of documents. They are branches on a common prefix, and a tree mask keeps them apart,
so the
documents are read once for all of them.
"""

import random
from dataclasses import dataclass

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from rewriter.prompts import rewrite_messages
from scoring.prompts import ABSTAIN, ANSWER, answer_messages
from train.tiny_world import Asked, Conversation, Fact, World, grammar, stand_alone

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|> ' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
KINDS = ["person", "person", "person", "company", "company", "film", "film", "town", "town"]
HISTORY = [26, 24, 18, 12, 8, 6, 6]  # weights of 0, 1, 2 ... turns before the question
SHORT_HISTORY = [60, 40]  # the same in the first lessons, with one document
LAST_LEVEL = 4
REWRITES = {"right": 0.30, "raw": 0.45, "wrong": 0.13, "short": 0.12}  # what an untuned rewriter is taught to say


@dataclass
class Branch:
    """One prompt with its target text."""

    messages: list[dict[str, str]]
    target: str


def mini_world(rng: random.Random, split: str) -> World:
    """A fresh world of a few entities, with many namesakes."""
    return World(rng, split, 0, kinds=rng.sample(KINDS, 5), namesakes=0.35)


def lead_up(world: World, fact: Fact, weights: list[int]) -> tuple[list[dict[str, str]], Asked]:
    """A conversation that arrives at a question for `fact`."""
    rng, talk = world.rng, Conversation(world)
    for _ in range(rng.choices(range(len(weights)), weights)[0]):
        before = talk.next_fact()
        if rng.random() < 0.4:
            before = Fact(fact.entity, rng.choice(list(fact.entity.values)))
        if (before.entity, before.attribute) != (fact.entity, fact.attribute):
            talk.answer(talk.ask(before))
    return talk.history, talk.ask(fact)


def reading(rng: random.Random, split: str, most_documents: int, branches: int = 5) -> list[Branch]:
    """Questions on one set of documents: four in five are answered there; three in ten sets allow abstaining."""
    world = mini_world(rng, split)
    count = rng.choices(range(most_documents + 1), [1, 3, 3, 6][: most_documents + 1])[0]
    main, *others = rng.sample(world.entities, len(world.entities))
    alike = [e for e in others if e.kind == main.kind] or others
    shelf = {entity.name: rng.sample(found := world.passages(entity), len(found)) for entity in world.entities}
    documents = []
    for number in range(count):
        entity = main if number == 0 else rng.choices([main, rng.choice(alike), rng.choice(others)], [5, 3, 2])[0]
        if shelf[entity.name]:
            documents.append(shelf[entity.name].pop())
    rng.shuffle(documents)
    told = [fact for document in documents for fact in document.facts]
    known = {(fact.entity, fact.attribute) for fact in told}
    untold = [fact for e in [main, *alike] for fact in world.facts(e) if (e, fact.attribute) not in known]
    instruction = ABSTAIN if documents and rng.random() < 0.3 else ANSWER
    made = []
    for _ in range(branches if documents else 2):
        fact = rng.choice(told if told and rng.random() < 0.8 else untold)
        history, asked = lead_up(world, fact, HISTORY if most_documents > 1 else SHORT_HISTORY)
        absent = instruction is ABSTAIN and (fact.entity, fact.attribute) not in known
        messages = answer_messages(history, asked.question, [document.text for document in documents], instruction)
        made.append(Branch(messages, "NO-RESPONSE" if absent else fact.value))
    return made


def telling_apart(rng: random.Random, split: str, branches: int = 5) -> list[Branch]:
    """Questions on three documents of which two or three state the same thing of different entities, often in the same
    words.

    A retriever brings such documents together. A model that has not seen them answers with what is said in the words
    of the
    question, of whomever it is said.
    """
    kind = rng.choice(sorted(set(KINDS)))
    world = World(rng, split, 0, kinds=[kind] * 4 + [rng.choice(KINDS)], namesakes=0.5)
    favourite = {f"{kind}.{name}": rng.randrange(3) for name in grammar()["kinds"][kind]["attributes"]}
    shelf = {entity: world.passages(entity, favourite if rng.random() < 0.6 else None) for entity in world.entities}
    main, *others = world.entities[:4]
    gold = rng.choice(shelf[main])
    shared = rng.choice(gold.facts).attribute
    rivals = [p for entity in others for p in shelf[entity] if any(fact.attribute == shared for fact in p.facts)]
    near = [passage for passage in shelf[main] if passage is not gold]
    documents = [gold]
    for _ in range(2):
        pool = rivals if rng.random() < 0.7 else near
        documents.append(pool.pop(rng.randrange(len(pool))) if pool else rivals.pop())
    told = [fact for document in documents for fact in document.facts]
    asked_for = [fact for fact in told if fact.attribute == shared]
    if near and rng.random() < 0.3:
        documents[0] = rng.choice(near)  # now the shared thing is said of others alone, and the question stays
    rng.shuffle(documents)
    made = []
    for number in range(branches):
        fact = rng.choice(asked_for if number < 3 else told)
        history, asked = lead_up(world, fact, HISTORY)
        messages = answer_messages(history, asked.question, [document.text for document in documents])
        made.append(Branch(messages, fact.value))
    return made


def rewriting(rng: random.Random, split: str, branches: int = 4) -> list[Branch]:
    """Next questions after one history, each with a rewrite drawn from `REWRITES`."""
    world = mini_world(rng, split)
    talk = Conversation(world)
    for _ in range(rng.choices(range(len(HISTORY)), HISTORY)[0]):
        talk.answer(talk.ask(talk.next_fact()))
    made = []
    for _ in range(branches):
        asked = talk.ask(talk.next_fact())
        made.append(Branch(rewrite_messages(talk.history, asked.question), uneven_rewrite(world, talk, asked)))
    return made


def uneven_rewrite(world: World, talk: Conversation, asked: Asked) -> str:
    """A rewrite as an untuned model gives: right, the raw question, about another entity, or with half a name."""
    rng, fact = world.rng, asked.fact
    how = rng.choices(list(REWRITES), list(REWRITES.values()))[0]
    wording = asked.wording if rng.random() < 0.4 else rng.randrange(3)
    if how == "raw":
        return asked.question
    if how == "wrong":
        others = [e for e in talk.seen if e.kind == fact.entity.kind and e is not fact.entity]
        others = others or [e for e in world.entities if e.kind == fact.entity.kind and e is not fact.entity]
        return stand_alone(fact, wording, rng.choice(others).name if others else fact.entity.short)
    return stand_alone(fact, wording, fact.entity.name if how == "right" else fact.entity.short)


def repetition(rng: random.Random, pieces: list[list[int]]) -> list[tuple[list[int], list[int]]]:
    """The first lessons: tokens that come again after a gap. They soon teach to copy, which all else needs.

    Args:
        rng: source of every choice.
        pieces: lists of token ids to choose from (`pieces_of`).

    Returns:
        One encoded branch: prompt and target ids.
    """

    def noise(least: int, most: int) -> list[int]:
        return [rng.choice(rng.choices(pieces, [6, 3, 1])[0]) for _ in range(rng.randint(least, most))]

    again = noise(3, 8)
    return [(noise(1, 10) + again + noise(1, 10) + again[:1], again[1:])]


def pieces_of(tokenizer: PreTrainedTokenizerFast) -> list[list[int]]:
    """Token ids that answers are made of: syllables of names, listed words, digits."""
    texts = [
        [f" {start}{end}" for start in grammar()["starts"] for end in grammar()["ends"]],
        [f" {word}" for word in listed_words()],
        list("0123456789"),
    ]
    return [sorted({token for ids in tokenizer(some)["input_ids"] for token in ids}) for some in texts]


def episode(rng: random.Random, split: str, level: int) -> list[Branch]:
    """One lesson. Up to level 3, `level` is the largest number of documents; level 4 is mostly `telling_apart`."""
    if level == LAST_LEVEL:
        lesson = rng.choices([telling_apart, reading, rewriting], [6, 2, 2])[0]
        return lesson(rng, split, 3) if lesson is reading else lesson(rng, split)
    return rewriting(rng, split) if rng.random() < 0.3 else reading(rng, split, level)


# ---------------------------------------------------------------------------------------------------------- tokenizer


def make_tokenizer(seed: int, size: int = 1536, episodes: int = 1500) -> PreTrainedTokenizerFast:
    """Byte-level BPE trained on the world's text, as Qwen2's (`AutoTokenizer` goes by the model's type)."""
    rng = random.Random(f"{seed} tokenizer")
    texts = [
        " " + message["content"]
        for _ in range(episodes)
        for branch in episode(rng, "lm", 3)[:2]
        for message in [*branch.messages, {"content": branch.target}]
    ]
    texts += [*(f" {word}" for word in [*listed_words(), *grammar()["starts"]]), *grammar()["ends"]] * 2000
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
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|endoftext|>",
        eos_token="<|end|>",
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
    )


def listed_words() -> list[str]:
    """Every value that is one of a list."""
    attributes = [a for kind in grammar()["kinds"].values() for a in kind["attributes"].values()]
    return [word for attribute in attributes if isinstance(attribute["value"], list) for word in attribute["value"]]


# ------------------------------------------------------------------------------------------------------------ batches


def render(messages: list[dict[str, str]]) -> str:
    """`CHAT_TEMPLATE` with the generation prompt, in plain Python (a thousand times a second in training)."""
    return "".join(f"<|{m['role']}|> {m['content']}<|end|>" for m in messages) + "<|assistant|>"


def encode(tokenizer: PreTrainedTokenizerFast, branches: list[Branch]) -> list[tuple[list[int], list[int]]]:
    """Prompt and target token ids of each branch; targets end in the end-of-turn token."""
    texts = [text for branch in branches for text in (render(branch.messages), f" {branch.target}<|end|>")]
    ids = [encoding.ids for encoding in tokenizer.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    return list(zip(ids[::2], ids[1::2], strict=True))


def tree(group: list[tuple[list[int], list[int]]]) -> tuple[list[int], list[int], list[int], list[int], list[float]]:
    """Pack the branches of one group behind their common prefix.

    Returns:
        Lists of equal length: token ids, branch numbers (0 for the prefix), positions, next tokens (-100 for none),
        and
        whether the next token is output (1.0) or not (0.0).
    """
    prompts = [prompt for prompt, _ in group]
    shared = 0
    while all(len(prompt) > shared + 1 and prompt[shared] == prompts[0][shared] for prompt in prompts):
        shared += 1
    tokens, branch, position = prompts[0][:shared], [0] * shared, list(range(shared))
    following, output = [*tokens[1:], -100], [0.0] * shared
    for number, (prompt, target) in enumerate(group, 1):
        own = prompt[shared:] + target
        tokens, branch = tokens + own, branch + [number] * len(own)
        position = position + list(range(shared, shared + len(own)))
        following = following + [*own[1:], -100]
        first = len(prompt) - shared - 1
        output = output + [1.0 if first <= i < len(own) - 1 else 0.0 for i in range(len(own))]
    return tokens, branch, position, following, output


def collate(groups: list, pad: int) -> dict[str, torch.Tensor]:
    """Trees padded on the right: `input_ids`, `position_ids`, `following`, `output` [batch, length], and a `mask`."""
    trees = [tree(group) for group in groups]
    length = max(len(tokens) for tokens, *_ in trees)

    def padded(column: int, fill: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([t[column] + [fill] * (length - len(t[column])) for t in trees], dtype=dtype)

    branch = padded(1, -1, torch.long)
    same = (branch[:, :, None] == branch[:, None, :]) | (branch[:, None, :] == 0)
    mask = (same & torch.ones(length, length, dtype=torch.bool).tril())[:, None]
    return {
        "input_ids": padded(0, pad, torch.long),
        "position_ids": padded(2, 0, torch.long),
        "following": padded(3, -100, torch.long),
        "output": padded(4, 0.0, torch.float),
        "mask": mask,
    }
