"""The tiny world: invented people, companies, films and towns, passages about them, and conversations that ask for
their facts.

    python -m train.tiny_world --out world --seed 0     # writes corpus.jsonl, train.jsonl, dev.jsonl, test.jsonl

Everything follows from the seed. Names are made of syllables; a name stem belongs to exactly one split (train, dev,
test or the language model's own training), so no entity of one split has ever been seen in another.
"""

import argparse
import json
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import yaml

from core.artifacts import read_json, sha256, write_atomic, write_json
from core.cli import run_command
from core.errors import InputError
from core.progress import log, set_up_logging

GRAMMAR = Path(__file__).resolve().parents[1] / "configs" / "tiny-world" / "grammar.yaml"
SPLITS = {"train": (0,), "dev": (1,), "test": (2,), "lm": (3, 4, 5, 6, 7)}
SHARES = {"person": 0.5, "company": 0.2, "film": 0.1, "town": 0.2}


@cache
def grammar() -> dict:
    """Kinds, attributes, wordings, values and syllables, from `configs/tiny-world/grammar.yaml`."""
    return yaml.safe_load(GRAMMAR.read_text(encoding="utf-8"))


@dataclass(eq=False)
class Entity:
    """One invented thing. `values` maps each attribute to its value; a value may be the name of another entity."""

    kind: str
    name: str
    short: str
    pronouns: tuple[str, str, str]  # subject, possessive, object
    values: dict[str, str] = field(default_factory=dict)

    def forms(self, how: str, rng: random.Random) -> dict[str, str]:
        """The forms {e}, {p}, {o} of a mention: `full`, `short`, `word` ("the film") or `pronoun`."""
        if how == "pronoun":
            subject, possessive, obj = self.pronouns
            return {"e": subject, "p": possessive, "o": obj}
        words = grammar()["kinds"][self.kind]["words"]
        mention = {
            "full": self.name,
            "short": self.short,
            "word": f"the {rng.choice(words)}" if words else self.short,
        }[how]
        return {"e": mention, "p": mention + "'s", "o": mention}


@dataclass(frozen=True)
class Fact:
    """One attribute of one entity: what a question asks for and a passage says."""

    entity: Entity
    attribute: str

    @property
    def value(self) -> str:
        return self.entity.values[self.attribute]

    @property
    def spec(self) -> dict:
        return grammar()["kinds"][self.entity.kind]["attributes"][self.attribute]


@dataclass(frozen=True)
class Passage:
    id: str
    text: str
    facts: tuple[Fact, ...]


def sentence(text: str) -> str:
    return text[0].upper() + text[1:]


class World:
    """Entities of one split with the passages about them.

    Args:
        rng: source of every choice.
        split: a key of `SPLITS`; names come from that split's stems alone.
        size: number of entities.
        kinds: their kinds, in the proportions of `SHARES` when not given.
        namesakes: share of entities that borrow the stem of an earlier one ("Belba Works", "Port Belba").
    """

    def __init__(
        self, rng: random.Random, split: str, size: int, kinds: list[str] | None = None, namesakes: float = 0.05
    ):
        self.rng, self.split, self.namesakes = rng, split, namesakes
        self.names: set[str] = set()
        self.stems: list[str] = []
        if kinds is None:
            kinds = [kind for kind, share in SHARES.items() for _ in range(round(size * share))]
        self.entities = [self._entity(kind) for kind in kinds]
        self.by_name = {entity.name: entity for entity in self.entities}
        for entity in self.entities:
            for attribute, spec in grammar()["kinds"][entity.kind]["attributes"].items():
                entity.values[attribute] = self._value(entity, spec["value"])

    def _stem(self) -> str:
        """An invented word that belongs to this world's split; sometimes one that is in use already."""
        if self.stems and self.rng.random() < self.namesakes:
            return self.rng.choice(self.stems)
        while True:
            stem = self.rng.choice(grammar()["starts"]) + self.rng.choice(grammar()["ends"])
            if zlib.crc32(stem.encode()) % 8 in SPLITS[self.split]:
                self.stems.append(stem)
                return stem

    def _name(self, kind: str) -> tuple[str, str]:
        spec = grammar()["kinds"][kind]
        while True:
            stem, given = self._stem(), self.rng.choice(grammar()["given"])
            name = self.rng.choice(spec["names"]).format(a=stem, g=given)
            if name not in self.names:
                self.names.add(name)
                return name, spec["short"].format(a=stem)

    def _entity(self, kind: str) -> Entity:
        name, short = self._name(kind)
        return Entity(kind, name, short, tuple(self.rng.choice(grammar()["kinds"][kind]["pronouns"])))

    def _value(self, entity: Entity, kind: str | list[str]) -> str:
        rng = self.rng
        if isinstance(kind, list):
            return rng.choice(kind)
        if kind == "year":
            return str(rng.randint(1800, 1999))
        if kind == "number":
            return str(rng.randint(60, 999))
        if kind == "name":
            return self._stem()
        others = [other.name for other in self.entities if other.kind == kind and other is not entity]
        return rng.choice(others) if others and rng.random() < 0.85 else self._name(kind)[0]

    def facts(self, entity: Entity) -> list[Fact]:
        return [Fact(entity, attribute) for attribute in entity.values]

    def passages(
        self, entity: Entity, favourite: dict[str, int] | None = None, liked: float = 0.6, copies: float = 0.1
    ) -> list[Passage]:
        """The passages about an entity: an opening sentence, then two or three facts each; some have a reworded near-
        duplicate.

        Args:
            entity: what they are about.
            favourite: for each attribute the wording that is liked; without it all are alike.
            liked: share of the sentences that use it.
            copies: share of passages that are followed by a near-duplicate with one fact fewer.
        """
        facts = self.facts(entity)
        self.rng.shuffle(facts)
        cuts = self.rng.choice([(3, 6), (3, 5), (2, 5)])
        found = []
        for part in (facts[: cuts[0]], facts[cuts[0] : cuts[1]], facts[cuts[1] :]):
            found.append(part)
            if self.rng.random() < copies:
                found.append(self.rng.sample(part, len(part) - 1))
        return [self._passage(entity, number, part, favourite or {}, liked) for number, part in enumerate(found)]

    def _passage(
        self, entity: Entity, number: int, facts: list[Fact], favourite: dict[str, int], liked: float
    ) -> Passage:
        rng = self.rng
        sentences = [rng.choice(grammar()["kinds"][entity.kind]["openers"]).format(e=entity.name)]
        for fact in facts:
            wording = favourite.get(f"{entity.kind}.{fact.attribute}")
            favoured = wording is not None and rng.random() < liked
            says = fact.spec["says"][wording] if favoured else rng.choice(fact.spec["says"])
            how = rng.choices(["full", "word", "pronoun"], [0.6, 0.2, 0.2])[0]
            sentences.append(sentence(says.format(v=fact.value, **entity.forms(how, rng))))
        return Passage(f"{self.split}-{entity.name.replace(' ', '_')}-{number}", " ".join(sentences), tuple(facts))


@dataclass(frozen=True)
class Asked:
    """A question as it was asked: `kind` is first, follow_up, switch or return; `reference` stands alone; `wording` is
    its number."""

    fact: Fact
    question: str
    kind: str
    reference: str
    wording: int


class Conversation:
    """A conversation in the making: who is being talked about, and how the next question may refer to it."""

    def __init__(self, world: World):
        self.world, self.rng = world, world.rng
        self.history: list[dict[str, str]] = []
        self.seen: list[Entity] = []
        self.last: Fact | None = None

    @property
    def focus(self) -> Entity | None:
        return self.last.entity if self.last else None

    @property
    def answered(self) -> Entity | None:
        """The entity that the last answer named, when the world has it."""
        return self.world.by_name.get(self.last.value) if self.last else None

    def ask(self, fact: Fact, wording: int | None = None) -> Asked:
        """Put a question for a fact, referring to its entity the way a user would at this point."""
        rng, entity = self.rng, fact.entity
        wording = rng.randrange(3) if wording is None else wording
        kind, how, lead = self._reference(entity)
        if how == "ellipsis":
            wording = 2
            question = f"And the {fact.spec['noun']}?"
        elif how == "full" and kind == "switch" and self._same_attribute(fact) and rng.random() < 0.6:
            wording = 2
            question = f"And what about {entity.name}?"
        else:
            asked = fact.spec["asks"][wording].format(**entity.forms(how, rng))
            question = lead + (asked[0].lower() + asked[1:] if lead else asked)
        return Asked(fact, question, kind, stand_alone(fact, wording, entity.name), wording)

    def _reference(self, entity: Entity) -> tuple[str, str, str]:
        """The turn's kind, the form of the mention, and a lead-in."""
        rng = self.rng
        if not self.last:
            return "first", "full", ""
        if entity is self.focus:
            hows = ["pronoun", "ellipsis", "word"] if entity.kind != "person" else ["pronoun", "ellipsis"]
            return "follow_up", rng.choice(hows), ""
        if entity is self.answered:
            clear = entity.kind != self.focus.kind
            return "follow_up", ("pronoun" if entity.kind == "person" else "word") if clear else "short", ""
        if entity in self.seen:
            if (
                entity.kind != "person"
                and sum(e.kind == entity.kind for e in self._mentioned()) == 1
                and rng.random() < 0.5
            ):
                return "return", "word", rng.choice(["Once more, ", "To go back, "])
            return "return", "pronoun", f"Back to {entity.short}: "
        return "switch", "full", ""

    def _mentioned(self) -> list[Entity]:
        return self.seen + ([self.answered] if self.answered and self.answered not in self.seen else [])

    def _same_attribute(self, fact: Fact) -> bool:
        return fact.entity.kind == self.focus.kind and fact.attribute == self.last.attribute

    def answer(self, asked: Asked) -> None:
        """Go on after the question: the assistant gives the value."""
        self.history += [
            {"role": "user", "content": asked.question},
            {"role": "assistant", "content": asked.fact.value},
        ]
        self.last = asked.fact
        if asked.fact.entity not in self.seen:
            self.seen.append(asked.fact.entity)

    def next_fact(self, switch: float = 0.25) -> Fact:
        """What a user would ask next: stay, follow the last answer, return to something earlier, or switch."""
        rng, pool = self.rng, self.world.entities
        if not self.last:
            entity = rng.choice(pool)
        else:
            earlier = [e for e in self.seen if e is not self.focus and self._alone_by_short(e)]
            draw = rng.random()
            if draw < switch:
                if rng.random() < 0.25:
                    same = [
                        e for e in pool if e.kind == self.focus.kind and e not in self.seen and e is not self.answered
                    ]
                    if same:
                        return Fact(rng.choice(same), self.last.attribute)
                entity = rng.choice(pool)
            elif draw < switch + 0.2 and earlier:
                entity = rng.choice(earlier)
            elif draw < switch + 0.4 and self.answered:
                entity = self.answered
            else:
                entity = self.focus
        return Fact(entity, rng.choice(list(entity.values)))

    def _alone_by_short(self, entity: Entity) -> bool:
        return sum(e.short == entity.short for e in self._mentioned()) == 1


def stand_alone(fact: Fact, wording: int, mention: str) -> str:
    """A question for a fact that names its entity: one of three wordings."""
    return fact.spec["asks"][wording].format(e=mention, p=mention + "'s", o=mention)


def conversation(world: World, turns: int) -> Iterator[tuple[list[dict[str, str]], Asked]]:
    """One conversation, turn by turn: the history before the turn, and what is asked. No fact is asked twice."""
    talk, done = Conversation(world), set()
    while len(done) < turns:
        fact = talk.next_fact()
        if (fact.entity.name, fact.attribute) in done:
            continue
        done.add((fact.entity.name, fact.attribute))
        asked = talk.ask(fact)
        yield list(talk.history), asked
        talk.answer(asked)


def write_world(out: Path, seed: int, conversations: dict[str, int], entities: dict[str, int]) -> None:
    """Write `corpus.jsonl` and one file of turns per split.

    Args:
        out: folder, made if missing.
        seed: the same seed gives the same bytes.
        conversations: split -> number of conversations (6 to 8 turns each).
        entities: split -> number of entities.
    """
    out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    favourite = {
        f"{kind}.{name}": rng.randrange(3) for kind, spec in grammar()["kinds"].items() for name in spec["attributes"]
    }
    corpus = []
    for split, size in entities.items():
        world = World(random.Random(f"{seed} {split}"), split, size)
        passages = [p for entity in world.entities for p in world.passages(entity, favourite, liked=0.85)]
        relevant: dict[tuple[str, str], list[str]] = {}
        for passage in passages:
            for fact in passage.facts:
                relevant.setdefault((fact.entity.name, fact.attribute), []).append(passage.id)
        corpus += [{"id": passage.id, "text": passage.text} for passage in passages]
        turns = []
        for number in range(conversations[split]):
            for depth, (history, asked) in enumerate(conversation(world, world.rng.randint(6, 8)), 1):
                docs = relevant[asked.fact.entity.name, asked.fact.attribute]
                turns.append(
                    {"id": f"{split}{number}_{depth}", "conversation": f"{split}{number}", "kind": asked.kind}
                    | {"history": history, "question": asked.question, "answers": [asked.fact.value]}
                    | {"relevant": dict.fromkeys(docs, 1), "rewrite": asked.reference}
                )
        write_lines(out / f"{split}.jsonl", turns)
    rng.shuffle(corpus)
    write_lines(out / "corpus.jsonl", corpus)


def write_lines(path: Path, records: list[dict]) -> None:
    write_atomic(path, "".join(json.dumps(record) + "\n" for record in records))


CONVERSATIONS = {"train": 190, "dev": 60, "test": 60}
ENTITIES = {"train": 170, "dev": 80, "test": 80}


def make_quickstart_data(out: Path, seed: int = 0) -> None:
    """The quickstart's world, unless it is there.

    Raises:
        InputError: the folder holds the world of another seed, or of another version of this file or its grammar.
    """
    note, made_by = out / "world.json", {"seed": seed, "version": sha256(Path(__file__), GRAMMAR)[:16]}
    if not note.exists():
        write_world(out, seed, CONVERSATIONS, ENTITIES)
        write_json(note, made_by)
        return
    there = read_json(note)
    for key, value in made_by.items():
        if there.get(key) != value:
            raise InputError(
                f"{out} holds the tiny world of another {key} ({there.get(key)}, not {value}); use another "
                "`--run.dir`, or remove that folder."
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for corpus.jsonl, train.jsonl, dev.jsonl, test.jsonl"
    )
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same world (default 0)")
    arguments = parser.parse_args()
    set_up_logging()
    if (arguments.out / "corpus.jsonl").exists():
        raise InputError(f"{arguments.out} holds a corpus.jsonl already; name another folder, or remove it.")
    write_world(arguments.out, arguments.seed, CONVERSATIONS, ENTITIES)
    log.info("tiny world -> %s", arguments.out)


if __name__ == "__main__":
    run_command(main)
