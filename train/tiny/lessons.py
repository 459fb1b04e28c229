"""Lessons in words for the tiny model: recall, reading, reading among distractors, and rewriting.

A lesson samples an episode in a new world: questions about the same conversation and documents. They are branches of
a common prefix, which training computes once for all of them. `rng` makes every choice, `split` determines the names.
"""

from random import Random

from core.records import Message
from rewriter.prompts import RewritePrompt
from scoring.prompts import ABSTAIN, ANSWER, answer_messages
from train.tiny.conversation import Conversation, Question
from train.tiny.entities import KINDS, Entity, Fact, Passage, Topic, World

KIND_DRAW = ["person", "person", "person", "company", "company", "film", "film", "town", "town"]
HISTORY = [20, 26, 18, 14, 8, 8, 6]  # weights of 0, 1, 2 ... turns before the questions
SHORT_HISTORY = [45, 55]  # weights for episodes with up to two documents
REWRITES = {"right": 0.30, "raw": 0.45, "wrong": 0.13, "short": 0.12}  # shares of the target rewrites
FINAL_REWRITES = {"right": 0.22, "raw": 0.66, "wrong": 0.06, "short": 0.06}  # shares in the final lessons
Branch = tuple[list[Message], str]  # a prompt of an episode and its target


def mixed_lesson(rng: Random, split: str, documents: int) -> list[Branch]:
    """Sample a lesson of a level in words.

    With 0 documents, recall and some rewriting. With up to 2, mostly reading. With up to 3, also longer conversations
    and questions that the context does not answer.
    """
    rewriting_share, recall_share = {0: (0.15, 1.0), 2: (0.2, 0.2), 3: (0.3, 0.05)}[documents]
    if rng.random() < rewriting_share:
        return rewriting(rng, split)
    if rng.random() < recall_share:
        return recall(rng, split)
    lesson = distractor_reading if rng.random() < 0.6 else reading
    return lesson(rng, split, documents, 0.6 if documents == 3 else 1.0)


def final_lesson(rng: Random, split: str) -> list[Branch]:
    """Sample a lesson for the last steps: rewrite like an untuned model, read, or abstain from one document."""
    draw = rng.random()
    if draw < 0.4:
        return rewriting(rng, split, FINAL_REWRITES)
    return distractor_reading(rng, split) if draw < 0.85 else distractor_reading(rng, split, 1, abstain=1.0)


def recall(rng: Random, split: str) -> list[Branch]:
    """State one attribute of three to six entities, in a sentence each. Only the name tells which one answers."""
    kind = rng.choice(KIND_DRAW)
    world = World(rng, split, [kind] * rng.randint(3, 6), namesakes=0.2)
    topic = rng.choice(world.entities[0].facts).topic
    facts = [fact for entity in world.entities for fact in entity.facts if fact.topic == topic]
    documents = [
        Passage("", fact.statement(rng.choice(fact.grammar["says"]), "full", rng), [fact])
        for fact in rng.sample(facts, len(facts))
    ]
    return answer_branches(Conversation(world), rng.sample(facts, min(5, len(facts))), documents)


def reading(rng: Random, split: str, most_documents: int, answerable: float) -> list[Branch]:
    """Ask questions about 0 to 3 documents like those of a retriever: about an entity, or similar ones about others.

    The documents answer a share `answerable` of the questions. In three of ten episodes, the target of the others is
    to abstain; elsewhere the answer cannot be known, so the model learns to be uncertain.
    """
    world, preferred = small_world(rng, split)
    entity = world.entities[0]
    passages = [passage for other in world.entities for passage in world.passages(other, preferred)]
    rng.shuffle(passages)
    topic = rng.choice(entity.facts).topic
    pools = passage_pools(passages, entity, topic)
    documents = []
    for number in range(rng.choices(range(most_documents + 1), [1, 3, 3, 6][: most_documents + 1])[0]):
        gold = number == 0 and rng.random() < 0.75
        documents.append(pools["gold"].pop() if gold else draw_distractor(rng, pools, [5, 3, 1]))
    rng.shuffle(documents)
    stated = [fact for document in documents for fact in document.facts]
    unstated = [fact for other in world.entities[:4] for fact in other.facts if fact not in stated]
    instruction = ABSTAIN if documents and rng.random() < 0.3 else ANSWER
    facts = []
    for _ in range(5 if documents else 2):
        pool = stated if stated and rng.random() < answerable else unstated
        on_topic = [fact for fact in pool if fact.topic == topic]
        facts.append(rng.choice(on_topic if on_topic and rng.random() < 0.6 else pool))
    conversation = conversation_before(world, facts, HISTORY if most_documents > 2 else SHORT_HISTORY)
    return answer_branches(conversation, facts, documents, instruction)


def distractor_reading(
    rng: Random, split: str, count: int = 3, answerable: float = 0.6, abstain: float = 0.25
) -> list[Branch]:
    """Ask questions about `count` documents; most of them state the same about other entities in the question's words.

    A model that only matches words answers wrongly; a model that does not find the entity should be uncertain. A share
    `answerable` of the episodes has a gold document; a share `abstain` allows abstention.
    """
    kind = rng.choice(KIND_DRAW)
    world = World(rng, split, [kind] * 5 + [rng.choice(KIND_DRAW)], namesakes=0.2)
    entity, *others = world.entities
    asked_fact, wording = rng.choice(entity.facts), rng.randrange(3)
    passages = world.passages(entity, {})
    passages += [p for other in others for p in world.passages(other, {asked_fact.topic: wording}, preference=0.85)]
    pools = passage_pools(passages, entity, asked_fact.topic)
    for pool in pools.values():
        rng.shuffle(pool)
    documents = [pools["gold"][0]] if rng.random() < answerable else []
    while len(documents) < count:
        documents.append(draw_distractor(rng, pools, [7, 2, 1]))
    rng.shuffle(documents)
    instruction = ABSTAIN if rng.random() < abstain else ANSWER
    stated = [fact for document in documents for fact in document.facts]
    of_entity = [fact for fact in stated if fact.entity is entity]
    of_others = [fact for fact in stated if fact.entity is not entity and fact.topic == asked_fact.topic]
    facts = [asked_fact] * 2 + [rng.choice(pool) if pool else asked_fact for pool in (of_entity, of_others, stated)]
    conversation = conversation_before(world, facts, HISTORY if count > 2 or abstain == 1 else SHORT_HISTORY)
    return answer_branches(conversation, facts, documents, instruction, wording)


def rewriting(rng: Random, split: str, shares: dict[str, float] = REWRITES) -> list[Branch]:
    """Ask four alternative questions after one history; the quality of each target rewrite is drawn by `shares`."""
    world, _ = small_world(rng, split)
    conversation, branches = Conversation(world), []
    for _ in range(rng.choices(range(len(HISTORY)), HISTORY)[0]):
        conversation.add_turn(conversation.ask(conversation.next_fact()))
    for _ in range(4):
        question = conversation.ask(conversation.next_fact())
        quality = rng.choices(list(shares), list(shares.values()))[0]
        prompt = RewritePrompt().messages(conversation.history, question.text)
        branches.append((prompt, rewrite(conversation, question, quality)))
    return branches


def rewrite(conversation: Conversation, question: Question, quality: str) -> str:
    """Write a rewrite: `right`, `raw` (the question itself), `wrong` (another entity) or `short` (part of a name)."""
    rng, entity = conversation.rng, question.fact.entity
    wording = question.wording if rng.random() < 0.4 else rng.randrange(3)
    if quality == "raw":
        return question.text
    if quality == "wrong":
        for pool in (conversation.seen, conversation.world.entities):
            names = [other.name for other in pool if other.kind == entity.kind and other is not entity]
            if names:
                return question.fact.question(wording, rng.choice(names))
    return question.fact.question(wording, entity.name if quality == "right" else entity.short_name)


def small_world(rng: Random, split: str) -> tuple[World, dict[Topic, int]]:
    """Build a world of six entities, the first four of one kind, and draw the wordings that its passages prefer."""
    kind = rng.choice(KIND_DRAW)
    world = World(rng, split, [kind] * 4 + rng.sample(sorted(set(KINDS) - {kind}), 2), namesakes=0.2)
    preferred = {(kind, attribute): rng.randrange(3) for attribute in KINDS[kind]["attributes"]}
    return world, preferred if rng.random() < 0.7 else {}


def passage_pools(passages: list[Passage], entity: Entity, topic: Topic) -> dict[str, list[Passage]]:
    """Group passages by whether they are about an entity and whether they state a topic; `gold` passages do both."""
    pools = {"gold": [], "same_entity": [], "same_topic": [], "other": []}
    for passage in passages:
        of_entity, on_topic = passage.facts[0].entity is entity, topic in [fact.topic for fact in passage.facts]
        other = "same_topic" if on_topic else "other"
        pools[("gold" if on_topic else "same_entity") if of_entity else other].append(passage)
    return pools


def draw_distractor(rng: Random, pools: dict[str, list[Passage]], weights: list[int]) -> Passage:
    """Draw a passage of the same topic, of the same entity, or any other, with `weights`."""
    pool = rng.choices([pools["same_topic"], pools["same_entity"], pools["other"]], weights)[0]
    return (pool or pools["other"]).pop()


def conversation_before(world: World, facts: list[Fact], weights: list[int]) -> Conversation:
    """Simulate a conversation that asks for none of `facts`; `weights` are those of 0, 1, 2 ... turns. Its last turn
    is mostly about the entity of the first of `facts`."""
    rng, conversation = world.rng, Conversation(world)
    turns = rng.choices(range(len(weights)), weights)[0]
    for number in range(turns):
        fact, is_last = conversation.next_fact(), number == turns - 1
        if rng.random() < (0.75 if is_last else 0.4):
            fact = rng.choice((facts[0] if is_last else rng.choice(facts)).entity.facts)
        if fact not in facts:
            conversation.add_turn(conversation.ask(fact))
    return conversation


def answer_branches(
    conversation: Conversation, facts: list[Fact], documents: list[Passage], instruction: str = ANSWER,
    preferred: int | None = None,
) -> list[Branch]:  # fmt: skip
    """Ask for facts, without repeated questions.

    The target is the value, or abstention if `instruction` allows it and no document states the fact. `preferred` is
    the wording of 60% of the questions.
    """
    texts, branches = [document.text for document in documents], {}
    for fact in facts:
        wording = preferred if preferred is not None and conversation.rng.random() < 0.6 else None
        question = conversation.ask(fact, wording).text
        unknown = not any(fact in document.facts for document in documents)
        target = "NO-RESPONSE" if unknown and instruction is ABSTAIN else fact.value
        branches[question] = answer_messages(conversation.history, question, texts, instruction), target
    return list(branches.values())
