"""Entities of the tiny world (invented people, companies, films and towns), their facts, and passages about them.

`grammar.yaml` defines the kinds of entities with their attributes and wordings, and the syllables of names.
"""

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

GRAMMAR_FILE = Path(__file__).with_name("grammar.yaml")
GRAMMAR = yaml.safe_load(GRAMMAR_FILE.read_text(encoding="utf-8"))
KINDS = GRAMMAR["kinds"]
ATTRIBUTES = [attribute for kind in KINDS.values() for attribute in kind["attributes"].values()]
# The CRC of a name stem modulo 8 determines its split, so no name is in two splits; `lm` is for pretraining.
SPLITS = {"train": (0,), "dev": (1,), "test": (2,), "lm": (3, 4, 5, 6, 7)}
NUMBERS = {"year": (1800, 1999), "number": (60, 999)}  # type of value -> minimum and maximum
Topic = tuple[str, str]  # kind and attribute


def placeholders(name: str) -> dict[str, str]:
    """The grammar's {e} (subject), {p} (possessive) and {o} (object) for a name."""
    return {"e": name, "p": f"{name}'s", "o": name}


@dataclass(eq=False)
class Entity:
    """An invented entity, with one fact for each attribute of its kind."""

    kind: str
    name: str  # unique in its world
    short_name: str  # part of the name; entities may share it
    pronouns: Sequence[str]  # subject, possessive, object
    facts: list["Fact"] = field(default_factory=list)  # in the order of the grammar

    def mention(self, form: str, rng: random.Random) -> dict[str, str]:
        """The placeholders for a mention by `full` name, `short` name, `word` ("the film") or `pronoun`."""
        if form == "pronoun":
            return dict(zip("epo", self.pronouns, strict=True))
        words = KINDS[self.kind]["words"]
        word = f"the {rng.choice(words)}" if words else self.short_name
        return placeholders({"full": self.name, "short": self.short_name, "word": word}[form])


@dataclass(eq=False)
class Fact:
    """The value of an entity's attribute, which passages state and questions ask for."""

    entity: Entity
    topic: Topic
    value: str  # may be the name of another entity

    @property
    def grammar(self) -> dict:
        kind, attribute = self.topic
        return KINDS[kind]["attributes"][attribute]

    def statement(self, template: str, form: str, rng: random.Random) -> str:
        text = template.format(v=self.value, **self.entity.mention(form, rng))
        return text[0].upper() + text[1:]

    def question(self, wording: int, name: str) -> str:
        """A stand-alone question in one of the three wordings."""
        return self.grammar["asks"][wording].format(**placeholders(name))


@dataclass(frozen=True)
class Passage:
    id: str
    text: str
    facts: Sequence[Fact]


class World:
    """Entities with names of one split, and passages about them.

    Args:
        rng: source of every choice.
        split: a key of `SPLITS`.
        kinds: the kind of each entity.
        namesakes: share of entities that reuse the name stem of an earlier one ("Belba Works", "Port Belba").
    """

    def __init__(self, rng: random.Random, split: str, kinds: Sequence[str], namesakes: float = 0.05):
        self.rng, self.split, self.namesakes = rng, split, namesakes
        self.names: set[str] = set()
        self.stems: list[str] = []
        self.entities = [Entity(kind, *self._new_name(kind), rng.choice(KINDS[kind]["pronouns"])) for kind in kinds]
        self.by_name = {entity.name: entity for entity in self.entities}
        for entity in self.entities:
            for attribute, grammar in KINDS[entity.kind]["attributes"].items():
                entity.facts.append(Fact(entity, (entity.kind, attribute), self._new_value(entity, grammar["value"])))

    def _new_stem(self) -> str:
        if self.stems and self.rng.random() < self.namesakes:
            return self.rng.choice(self.stems)
        while True:
            stem = self.rng.choice(GRAMMAR["starts"]) + self.rng.choice(GRAMMAR["ends"])
            if zlib.crc32(stem.encode()) % 8 in SPLITS[self.split]:
                self.stems.append(stem)
                return stem

    def _new_name(self, kind: str) -> tuple[str, str]:
        """A full name and its short form."""
        while True:
            stem, given_name = self._new_stem(), self.rng.choice(GRAMMAR["given"])
            name = self.rng.choice(KINDS[kind]["names"]).format(a=stem, g=given_name)
            if name not in self.names:
                self.names.add(name)
                return name, KINDS[kind]["short"].format(a=stem)

    def _new_value(self, entity: Entity, value_type: str | list[str]) -> str:
        if isinstance(value_type, list):
            return self.rng.choice(value_type)
        if value_type in NUMBERS:
            return str(self.rng.randint(*NUMBERS[value_type]))
        if value_type == "name":
            return self._new_stem()
        others = [other.name for other in self.entities if other.kind == value_type and other is not entity]
        return self.rng.choice(others) if others and self.rng.random() < 0.85 else self._new_name(value_type)[0]

    def passages(self, entity: Entity, preferred: dict[Topic, int], preference: float = 0.6) -> list[Passage]:
        """Write passages with two or three facts of an entity each; one in ten has a reworded near-duplicate.

        `preferred` maps topics to a wording (0 to 2) that is used with probability `preference`; otherwise the wording
        is random.
        """
        facts = list(entity.facts)
        self.rng.shuffle(facts)
        first, second = self.rng.choice([(3, 6), (3, 5), (2, 5)])
        contents = []
        for part in (facts[:first], facts[first:second], facts[second:]):
            contents.append(part)
            if self.rng.random() < 0.1:
                contents.append(self.rng.sample(part, len(part) - 1))
        name = f"{self.split}-{entity.name.replace(' ', '_')}"
        return [
            Passage(f"{name}-{number}", self._text(entity, part, preferred, preference), part)
            for number, part in enumerate(contents)
        ]

    def _text(self, entity: Entity, facts: list[Fact], preferred: dict[Topic, int], preference: float) -> str:
        rng = self.rng
        sentences = [rng.choice(KINDS[entity.kind]["openers"]).format(e=entity.name)]
        for fact in facts:
            says = fact.grammar["says"]
            is_preferred = fact.topic in preferred and rng.random() < preference
            template = says[preferred[fact.topic]] if is_preferred else rng.choice(says)
            form = rng.choices(["full", "word", "pronoun"], [0.6, 0.2, 0.2])[0]
            sentences.append(fact.statement(template, form, rng))
        return " ".join(sentences)


def listed_values() -> list[str]:
    """The values of all attributes whose values come from a list."""
    return [value for attribute in ATTRIBUTES if isinstance(attribute["value"], list) for value in attribute["value"]]
