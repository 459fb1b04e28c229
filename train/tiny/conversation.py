"""Conversations in the tiny world: a simulated user asks for facts, and refers to entities in ways that the history
makes clear."""

from collections.abc import Iterator
from dataclasses import dataclass

from core.records import Message
from train.tiny.entities import Entity, Fact, World


@dataclass(frozen=True)
class Question:
    """A question of the user."""

    fact: Fact
    text: str
    kind: str  # `first`, `follow_up`, `switch` (to another entity) or `return` (to an earlier one)
    wording: int  # wording in the grammar, 0 to 2

    @property
    def rewrite(self) -> str:
        """The question without references to the history."""
        return self.fact.question(self.wording, self.fact.entity.name)


class Conversation:
    """The history of a conversation, and the user's next questions."""

    def __init__(self, world: World):
        self.world, self.rng = world, world.rng
        self.history: list[Message] = []
        self.last: Fact | None = None  # fact of the last turn
        self.seen: list[Entity] = []  # entities that the user has asked about
        self.answered: Entity | None = None  # entity that the last answer named
        self.mentioned: list[Entity] = []  # `seen` and `answered`

    def add_turn(self, question: Question) -> None:
        """Append a question and its answer to the history."""
        self.last = fact = question.fact
        self.history += [{"role": "user", "content": question.text}, {"role": "assistant", "content": fact.value}]
        self.answered = self.world.by_name.get(fact.value)
        if fact.entity not in self.seen:
            self.seen.append(fact.entity)
        self.mentioned = self.seen + ([self.answered] if self.answered and self.answered not in self.seen else [])

    def ask(self, fact: Fact, wording: int | None = None) -> Question:
        """Ask for a fact, in a random wording unless `wording` is given."""
        wording = self.rng.randrange(3) if wording is None else wording
        kind, form, lead_in = self._reference(fact.entity)
        if form == "ellipsis":
            return Question(fact, f"And the {fact.grammar['noun']}?", kind, 2)
        if kind == "switch" and fact.topic == self.last.topic and self.rng.random() < 0.6:
            return Question(fact, f"And what about {fact.entity.name}?", kind, 2)
        text = fact.grammar["asks"][wording].format(**fact.entity.mention(form, self.rng))
        return Question(fact, lead_in + text[0].lower() + text[1:] if lead_in else text, kind, wording)

    def _reference(self, entity: Entity) -> tuple[str, str, str]:
        """Kind of question, form of mention (`Entity.mention`, or `ellipsis` for no mention), and a lead-in."""
        rng, is_person = self.rng, entity.kind == "person"
        if not self.last:
            return "first", "full", ""
        if entity is self.last.entity:
            return "follow_up", rng.choice(["pronoun", "ellipsis"] + ([] if is_person else ["word"])), ""
        if entity is self.answered:
            clear = entity.kind != self.last.entity.kind
            return "follow_up", ("pronoun" if is_person else "word") if clear else "short", ""
        if entity in self.seen:
            kinds = [other.kind for other in self.mentioned]
            if not is_person and kinds.count(entity.kind) == 1 and rng.random() < 0.5:
                return "return", "word", rng.choice(["Once more, ", "To go back, "])
            return "return", "pronoun", f"Back to {entity.short_name}: "
        return "switch", "full", ""

    def next_fact(self) -> Fact:
        """Draw the next fact to ask for: of the same entity, the last answer, an earlier entity, or any entity."""
        rng, entities = self.rng, self.world.entities
        if not self.last:
            return rng.choice(rng.choice(entities).facts)
        entity, short_names = self.last.entity, [other.short_name for other in self.mentioned]
        earlier = [other for other in self.seen if other is not entity and short_names.count(other.short_name) == 1]
        draw = rng.random()
        if draw < 0.25:
            others = [other for other in entities if other not in self.mentioned]
            similar = [fact for other in others for fact in other.facts if fact.topic == self.last.topic]
            if rng.random() < 0.25 and similar:
                return rng.choice(similar)
            entity = rng.choice(entities)
        elif draw < 0.45 and earlier:
            entity = rng.choice(earlier)
        elif draw < 0.65 and self.answered:
            entity = self.answered
        return rng.choice(entity.facts)


def simulate(world: World, turns: int) -> Iterator[tuple[list[Message], Question]]:
    """Simulate a conversation without repeated questions; yield each turn's history and question."""
    conversation, facts = Conversation(world), set()
    while len(facts) < turns:
        fact = conversation.next_fact()
        if fact not in facts:
            facts.add(fact)
            question = conversation.ask(fact)
            yield list(conversation.history), question
            conversation.add_turn(question)
