"""Write the tiny world: a corpus, and conversations with answers, relevant passages and rewrites.

python -m train.tiny.world --out world --seed 0     # writes corpus.jsonl, train.jsonl, dev.jsonl, test.jsonl
"""

import json
import random
from dataclasses import dataclass
from pathlib import Path

from core.artifacts import read_json, sha256, write_atomic, write_json
from core.cli import parse_flags, run_command
from core.errors import InputError
from core.progress import log, set_up_logging
from core.schema import Seed, Validated
from train.tiny.conversation import simulate
from train.tiny.entities import GRAMMAR_FILE, KINDS, World

SIZES = {"train": (170, 190), "dev": (80, 60), "test": (80, 60)}  # split -> number of entities, of conversations
KIND_SHARES = {"person": 0.5, "company": 0.2, "film": 0.1, "town": 0.2}
SOURCES = [GRAMMAR_FILE, *(Path(__file__).with_name(name) for name in ("entities.py", "conversation.py", "world.py"))]


def mixed_kinds(size: int) -> list[str]:
    """The kinds of `size` entities, in the proportions of `KIND_SHARES`."""
    return [kind for kind, share in KIND_SHARES.items() for _ in range(round(size * share))]


def write_world(out: Path, seed: int, sizes: dict[str, tuple[int, int]] = SIZES) -> None:
    """Write `corpus.jsonl` and one file of turns per split; the same seed gives the same bytes."""
    rng = random.Random(seed)
    preferred = {(kind, attribute): rng.randrange(3) for kind in KINDS for attribute in KINDS[kind]["attributes"]}
    corpus = []
    for split, (entities, conversations) in sizes.items():
        world = World(random.Random(f"{seed} {split}"), split, mixed_kinds(entities))
        passages = {entity: world.passages(entity, preferred, preference=0.85) for entity in world.entities}
        corpus += [{"id": passage.id, "text": passage.text} for about in passages.values() for passage in about]
        turns = [
            {
                "id": f"{split}{number}_{depth}",
                "conversation": f"{split}{number}",
                "kind": question.kind,
                "history": history,
                "question": question.text,
                "answers": [question.fact.value],
                "relevant": {p.id: 1 for p in passages[question.fact.entity] if question.fact in p.facts},
                "rewrite": question.rewrite,
            }
            for number in range(conversations)
            for depth, (history, question) in enumerate(simulate(world, world.rng.randint(6, 8)), 1)
        ]
        write_lines(out / f"{split}.jsonl", turns)
    rng.shuffle(corpus)
    write_lines(out / "corpus.jsonl", corpus)


def write_lines(path: Path, records: list[dict]) -> None:
    write_atomic(path, "".join(json.dumps(record) + "\n" for record in records))


def make_quickstart_data(out: Path, seed: int = 0) -> None:
    """Write the quickstart's world, unless the folder already has it.

    Raises:
        InputError: the folder has a world with a different seed, or from another version of its code or grammar.
    """
    marker, expected = out / "world.json", {"seed": seed, "version": sha256(*SOURCES)[:16]}
    if not marker.exists():
        write_world(out, seed)
        write_json(marker, expected)
        return
    present = read_json(marker)
    for key, value in expected.items():
        if present.get(key) != value:
            raise InputError(
                f"{out} has a tiny world with another {key} ({present.get(key)}, not {value}); use another "
                "`--run.dir`, or remove the folder."
            )


@dataclass(kw_only=True)
class WorldFlags(Validated):
    """Flags of the command.

    Args:
        out: folder of the files.
        seed: the same seed gives the same world.
    """

    out: Path
    seed: Seed = 0


def main(argv: list[str] | None = None) -> None:
    flags = parse_flags(WorldFlags, __doc__, argv)
    set_up_logging()
    if (flags.out / "corpus.jsonl").exists():
        raise InputError(f"{flags.out} already has a corpus.jsonl; name another folder, or remove it.")
    write_world(flags.out, flags.seed)
    log.info("tiny world -> %s", flags.out)


if __name__ == "__main__":
    run_command(main)
