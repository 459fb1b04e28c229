"""What the tiny language model learns from: rewriting, reading and abstaining, each in a fresh world of invented
entities.

Several questions share a conversation and a set of documents. They are branches on a common prefix, and a tree mask
keeps them apart, so the prefix is read once for all of them.
"""

import random
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerFast

from rewriter.prompts import RewritePrompt
from scoring.prompts import ABSTAIN, ANSWER, answer_messages
from train.tiny_world import Asked, Conversation, Fact, Passage, World, grammar, sentence, stand_alone

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|> ' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
KINDS = ["person", "person", "person", "company", "company", "film", "film", "town", "town"]
HISTORY = [20, 26, 18, 14, 8, 8, 6]  # weights of 0, 1, 2 ... turns before the question
SHORT_HISTORY = [45, 55]  # the same in the first lessons, with up to two documents
REWRITES = {"right": 0.30, "raw": 0.45, "wrong": 0.13, "short": 0.12}  # what a rewriter is taught to say
UNTUNED = {"right": 0.22, "raw": 0.66, "wrong": 0.06, "short": 0.06}  # the same in the last lessons


@dataclass
class Branch:
    """One prompt with its target text."""

    messages: list[dict[str, str]]
    target: str


def mini_world(rng: random.Random, split: str) -> tuple[World, dict[str, int] | None]:
    """A fresh world of a few entities, the first four of one kind, and the wordings that it prefers, if any."""
    kind = rng.choice(KINDS)
    world = World(rng, split, 0, kinds=[kind] * 4 + rng.sample(sorted(set(KINDS) - {kind}), 2), namesakes=0.2)
    favourite = {f"{kind}.{name}": rng.randrange(3) for name in grammar()["kinds"][kind]["attributes"]}
    return world, favourite if rng.random() < 0.7 else None


def lead_up(world: World, facts: list[Fact], weights: list[int]) -> Conversation:
    """A conversation of 0, 1, 2 ... turns, by their `weights`, that leads up to questions for `facts` without asking
    for one of them. Its last turn is mostly about the first fact's entity, to which a question may then refer."""
    rng, talk = world.rng, Conversation(world)
    turns = rng.choices(range(len(weights)), weights)[0]
    for number in range(turns):
        before, last = talk.next_fact(), number == turns - 1
        if rng.random() < (0.75 if last else 0.4):
            entity = facts[0].entity if last else rng.choice(facts).entity
            before = Fact(entity, rng.choice(list(entity.values)))
        if before not in facts:
            talk.answer(talk.ask(before))
    return talk


def recall(rng: random.Random, split: str, branches: int = 5) -> list[Branch]:
    """The same thing stated of three to six entities, in a sentence each, and asked of several.

    Words alone do not tell which statement is meant: the answer is found by the name or not at all.
    """
    kind = rng.choice(KINDS)
    world = World(rng, split, 0, kinds=[kind] * rng.randint(3, 6), namesakes=0.2)
    topic = rng.choice(list(world.entities[0].values))
    facts = [Fact(entity, topic) for entity in world.entities]
    documents = [
        sentence(rng.choice(fact.spec["says"]).format(v=fact.value, **fact.entity.forms("full", rng)))
        for fact in rng.sample(facts, len(facts))
    ]
    made = []
    for fact in rng.sample(facts, min(branches, len(facts))):
        made.append(Branch(answer_messages([], Conversation(world).ask(fact).question, documents), fact.value))
    return made


def reading(
    rng: random.Random, split: str, most_documents: int, told: float = 0.75, branches: int = 5
) -> list[Branch]:
    """Questions on one set of documents, as a retriever brings them.

    Such documents are about the entity in question, or state the same thing of another, often in the same words. A
    model that has seldom seen that answers with what is said in the words of the question, of whomever it is said.

    Args:
        rng: source of every choice.
        split: of the entities' names.
        most_documents: 0 to `most_documents` documents are given.
        told: share of the questions that the documents answer. Three in ten sets allow abstaining from the others;
            else these ask for a value that cannot be known, and the model learns to be unsure.
        branches: number of questions; two without documents.
    """
    world, favourite = mini_world(rng, split)
    main = world.entities[0]
    shelf = [(passage, entity) for entity in world.entities for passage in world.passages(entity, favourite)]
    rng.shuffle(shelf)
    topic = rng.choice(world.facts(main)).attribute
    gold, rivals, near, rest = [], [], [], []
    for passage, entity in shelf:
        states = any(fact.attribute == topic for fact in passage.facts) and entity.kind == main.kind
        ((gold if entity is main else rivals) if states else near if entity is main else rest).append(passage)
    documents = []
    for number in range(rng.choices(range(most_documents + 1), [1, 3, 3, 6][: most_documents + 1])[0]):
        pool = gold if number == 0 and rng.random() < 0.75 else rng.choices([rivals, near, rest], [5, 3, 1])[0]
        documents.append((pool or rest).pop())
    rng.shuffle(documents)
    known = [fact for document in documents for fact in document.facts]
    known_topic = [fact for fact in known if fact.attribute == topic and fact.entity.kind == main.kind]
    unknown = [fact for entity in world.entities[:4] for fact in world.facts(entity) if fact not in known]
    unknown_topic = [fact for fact in unknown if fact.attribute == topic and fact.entity.kind == main.kind]
    instruction = ABSTAIN if documents and rng.random() < 0.3 else ANSWER
    facts = []
    for _ in range(branches if documents else 2):
        pools = (known_topic, known) if known and rng.random() < told else (unknown_topic, unknown)
        facts.append(rng.choice(pools[0] if pools[0] and rng.random() < 0.6 else pools[1]))
    talk = lead_up(world, facts, HISTORY if most_documents > 2 else SHORT_HISTORY)
    return distinct([question_on(talk, fact, documents, instruction) for fact in facts])


def question_on(
    talk: Conversation, fact: Fact, documents: list[Passage], instruction: str, wording: int | None = None
) -> Branch:
    """The next question of a conversation, on some documents; the target is the fact, or to abstain from it."""
    known = any(fact in document.facts for document in documents)
    messages = answer_messages(
        talk.history, talk.ask(fact, wording).question, [document.text for document in documents], instruction
    )
    return Branch(messages, "NO-RESPONSE" if instruction is ABSTAIN and not known else fact.value)


def distinct(branches: list[Branch]) -> list[Branch]:
    """Branches on one prefix, each question once."""
    return list({branch.messages[-1]["content"]: branch for branch in branches}.values())


def telling_apart(
    rng: random.Random, split: str, count: int = 3, told: float = 0.6, branches: int = 5, abstain: float = 0.25
) -> list[Branch]:
    """Questions on documents as a retriever brings them that goes by the words of the question.

    Most state the thing in question of others, in the question's words; the right one, if it is there, says it in any
    words. A model that goes by words alone is wrong here; one that cannot find the entity should be unsure.

    Args:
        rng: source of every choice.
        split: of the entities' names.
        count: number of documents.
        told: share of the sets in which a document holds what is asked of the main entity.
        branches: number of questions.
        abstain: share of the sets that allow abstaining. If all do, conversations are of any length,
            else short before one or two documents.
    """
    kind = rng.choice(KINDS)
    world = World(rng, split, 0, kinds=[kind] * 5 + [rng.choice(KINDS)], namesakes=0.2)
    main, *others = world.entities
    topic = rng.choice(list(main.values))
    wording = rng.randrange(3)
    own = world.passages(main)
    rivals = [p for e in others for p in world.passages(e, {f"{kind}.{topic}": wording}, liked=0.85)]
    gold = [p for p in own if any(fact.attribute == topic for fact in p.facts)]
    near = [p for p in own if p not in gold]
    same = [p for p in rivals if any(fact.attribute == topic and fact.entity.kind == kind for fact in p.facts)]
    rest = [p for p in rivals if p not in same]
    for pool in (gold, near, same, rest):
        rng.shuffle(pool)
    documents = [gold[0]] if rng.random() < told else []
    while len(documents) < count:
        pool = rng.choices([same, near, rest], [7, 2, 1])[0]
        documents.append((pool or rest).pop())
    rng.shuffle(documents)
    known = [fact for document in documents for fact in document.facts]
    stated = [
        fact for fact in known if fact.attribute == topic and fact.entity is not main and fact.entity.kind == kind
    ]
    instruction = ABSTAIN if rng.random() < abstain else ANSWER
    weights = HISTORY if count > 2 or abstain == 1 else SHORT_HISTORY
    told_of_main = [fact for fact in known if fact.entity is main]
    facts = [Fact(main, topic)]
    for number in range(1, branches):
        pool = stated if number == 3 else known if number == 4 else told_of_main
        facts.append(rng.choice(pool) if pool and number > 1 else Fact(main, topic))
    talk = lead_up(world, facts, weights)
    asked = [question_on(talk, f, documents, instruction, wording if rng.random() < 0.6 else None) for f in facts]
    return distinct(asked)


def rewriting(
    rng: random.Random, split: str, branches: int = 4, rewrites: dict[str, float] = REWRITES
) -> list[Branch]:
    """Next questions after one history, each with one of the `rewrites`, by their shares."""
    world, _ = mini_world(rng, split)
    talk = Conversation(world)
    for _ in range(rng.choices(range(len(HISTORY)), HISTORY)[0]):
        talk.answer(talk.ask(talk.next_fact()))
    made = []
    for _ in range(branches):
        asked = talk.ask(talk.next_fact())
        made.append(
            Branch(
                RewritePrompt().messages(talk.history, asked.question), uneven_rewrite(world, talk, asked, rewrites)
            )
        )
    return made


def uneven_rewrite(world: World, talk: Conversation, asked: Asked, rewrites: dict[str, float]) -> str:
    """A rewrite as an untuned model gives: right, the raw question, about another entity, or with half a name."""
    rng, fact = world.rng, asked.fact
    how = rng.choices(list(rewrites), list(rewrites.values()))[0]
    wording = asked.wording if rng.random() < 0.4 else rng.randrange(3)
    if how == "raw":
        return asked.question
    if how == "wrong":
        others = [e for e in talk.seen if e.kind == fact.entity.kind and e is not fact.entity]
        others = others or [e for e in world.entities if e.kind == fact.entity.kind and e is not fact.entity]
        return stand_alone(fact, wording, rng.choice(others).name if others else fact.entity.short)
    return stand_alone(fact, wording, fact.entity.name if how == "right" else fact.entity.short)


def last_episode(rng: random.Random, split: str) -> list[Branch]:
    """One of the last lessons: mostly rewriting as an untuned model does it; reading, so that it is not lost; and
    whether one document holds the answer."""
    drawn = rng.random()
    if drawn < 0.4:
        return rewriting(rng, split, rewrites=UNTUNED)
    return telling_apart(rng, split) if drawn < 0.85 else telling_apart(rng, split, count=1, abstain=1.0)


def repetition(rng: random.Random, pieces: list[list[int]]) -> list[tuple[list[int], list[int]]]:
    """The first lessons: tokens that come again after a gap. They soon teach to copy, which all else needs.

    Args:
        rng: source of every choice.
        pieces: lists of token ids to choose from (`pieces_of`).

    Returns:
        One encoded branch: prompt and target ids.
    """

    again = noise(rng, pieces, 3, 8)
    return [(noise(rng, pieces, 1, 10) + again + noise(rng, pieces, 1, 10) + again[:1], again[1:])]


def noise(rng: random.Random, pieces: list[list[int]], least: int, most: int) -> list[int]:
    return [rng.choice(rng.choices(pieces[:3], [6, 3, 1])[0]) for _ in range(rng.randint(least, most))]


def records(
    rng: random.Random, pieces: list[list[int]], filler: int, marker: int, branches: int = 5
) -> list[tuple[list[int], list[int]]]:
    """Records of a name, filler that all share, and a value; then a name, other filler, a marker: what is its value?

    Without filler this is repetition. The more of it, the farther the value is from its name: a way from copying to
    `recall` in small steps.

    Args:
        rng: source of every choice.
        pieces: as for `repetition`.
        filler: most tokens between a name and its value.
        marker: the token after which the value is wanted.
        branches: most values that are asked for.

    Returns:
        Encoded branches: prompt and target ids.
    """
    syllables, words, digits, others = pieces
    names = [rng.choices(syllables, k=2) for _ in range(rng.randint(2, 6))]
    values = [rng.choices(rng.choice([words, digits]), k=rng.randint(1, 2)) for _ in names]
    between, asked = (rng.choices(others, k=rng.randint(0, filler)) for _ in range(2))
    end = rng.choices(others, k=1)
    told = [token for name, value in zip(names, values, strict=True) for token in name + between + value + end]
    chosen = rng.sample(range(len(names)), min(branches, len(names)))
    return [(told + names[i] + asked + [marker], values[i] + end) for i in chosen]


def pieces_of(tokenizer: PreTrainedTokenizerFast) -> list[list[int]]:
    """Token ids of name syllables, of listed words, of digits, and of the other words of the grammar's sentences."""
    kinds = grammar()["kinds"].values()
    sentences = [
        text for kind in kinds for spec in kind["attributes"].values() for text in spec["says"] + spec["asks"]
    ]
    texts = [
        [f" {start}{end}" for start in grammar()["starts"] for end in grammar()["ends"]],
        [f" {word}" for word in [*listed_words(), *grammar()["given"]]],
        list("0123456789"),
        [f" {word}" for text in sentences for word in text.split() if word.isalpha()],
    ]
    ids = [{token for some in tokenizer(part)["input_ids"] for token in some} for part in texts]
    ids[3] -= ids[0] | ids[1] | ids[2]
    return [sorted(some) for some in ids]


def episode(rng: random.Random, split: str, documents: int) -> list[Branch]:
    """One lesson in words: without documents mostly recall; with up to 2, reading what is always told, and still some
    recall; with up to 3, longer conversations, and questions that the documents do not answer."""
    if rng.random() < (0.15, 0.2, 0.2, 0.3)[documents]:
        return rewriting(rng, split)
    if rng.random() < (1.0, 0.2, 0.2, 0.05)[documents]:
        return recall(rng, split)
    told = 0.6 if documents == 3 else 1.0
    if rng.random() < 0.6:
        return telling_apart(rng, split, documents, told)
    return reading(rng, split, documents, told)


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
        and whether the next token is output (1.0) or not (0.0).
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
