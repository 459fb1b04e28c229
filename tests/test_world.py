"""The tiny world: the same bytes from the same seed, splits that share no name, labels that hold."""

import json
import random

from train.tiny_world import CONVERSATIONS, ENTITIES, SPLITS, World, conversation, grammar, write_world


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
