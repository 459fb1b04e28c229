"""The tiny world: the same bytes from the same seed, splits that share no name, labels that hold."""

import json
import random

import pytest

from core.errors import InputError
from train.tiny_world import (
    CONVERSATIONS,
    ENTITIES,
    SPLITS,
    World,
    conversation,
    grammar,
    make_quickstart_data,
    write_world,
)


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_seed_gives_the_same_bytes(tmp_path):
    for name in "ab":
        write_world(tmp_path / name, 3, {"train": 4, "test": 3}, {"train": 12, "test": 9})
    write_world(tmp_path / "c", 4, {"train": 4, "test": 3}, {"train": 12, "test": 9})
    for file in ("corpus.jsonl", "train.jsonl", "test.jsonl"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
        assert (tmp_path / "a" / file).read_bytes() != (tmp_path / "c" / file).read_bytes()


def test_no_name_is_in_two_splits():
    stems = {split: set(World(random.Random(1), split, 60).stems) for split in SPLITS}
    for one in stems:
        for other in stems:
            assert one == other or not stems[one] & stems[other]


def test_the_quickstart_world(tmp_path):
    write_world(tmp_path, 0, CONVERSATIONS, ENTITIES)
    corpus = {record["id"]: record["text"] for record in read(tmp_path / "corpus.jsonl")}
    test = read(tmp_path / "test.jsonl")
    assert len(corpus) >= 1000 and len(test) >= 300
    words = [len(text.split()) for text in corpus.values()]
    assert min(words) >= 15 and max(words) <= 60
    assert {turn["kind"] for turn in test} == {"first", "follow_up", "switch", "return"}
    for turn in test:
        assert turn["relevant"]
        assert all(turn["answers"][0] in corpus[doc] for doc in turn["relevant"])
        assert turn["kind"] == "first" or turn["history"]
    for spec in grammar()["kinds"].values():
        assert 6 <= len(spec["attributes"]) <= 10
        assert all(len(a["says"]) == len(a["asks"]) == 3 for a in spec["attributes"].values())


@pytest.mark.parametrize(("seed", "version", "named"), [(8, None, "seed"), (7, "of before", "version")])
def test_another_world_is_not_taken_for_this_one(tmp_path, seed, version, named):
    make_quickstart_data(tmp_path, 7)
    made = (tmp_path / "test.jsonl").stat().st_mtime_ns
    make_quickstart_data(tmp_path, 7)
    assert (tmp_path / "test.jsonl").stat().st_mtime_ns == made
    if version:
        (tmp_path / "world.json").write_text(json.dumps({"seed": 7, "version": version}))
    with pytest.raises(InputError, match=f"tiny world of another {named}.*use another `--run.dir`"):
        make_quickstart_data(tmp_path, seed)


def test_follow_ups_refer_and_references_stand_alone():
    world = World(random.Random(5), "dev", 20)
    for _ in range(20):
        for history, asked in conversation(world, 6):
            name = asked.fact.entity.name
            assert name in asked.reference
            if asked.kind in ("first", "switch"):
                assert name in asked.question
            if asked.kind == "follow_up":
                assert name not in asked.question
                assert any(name in message["content"] for message in history)
