"""The tiny world: the same bytes for the same seed, splits without common names, and correct labels."""

import json
import random
from dataclasses import asdict

import pytest

from core.artifacts import write_json
from core.errors import InputError
from tests.conftest import settings_of
from train.run import load_run_folder, prepare_data
from train.tiny.conversation import simulate
from train.tiny.entities import KINDS, World
from train.tiny.world import make_quickstart_data, mixed_kinds, write_world

SPLITS = ("train", "dev", "test", "lm")


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_seed_gives_the_same_bytes(tmp_path):
    sizes = {"train": (10, 4), "test": (10, 3)}
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        write_world(tmp_path / name, seed, sizes)
    for file in ("corpus.jsonl", "train.jsonl", "test.jsonl"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
        assert (tmp_path / "a" / file).read_bytes() != (tmp_path / "c" / file).read_bytes()


def test_no_name_is_in_two_splits():
    names = {split: set(World(random.Random(1), split, mixed_kinds(60)).stems) for split in SPLITS}
    assert sum(map(len, names.values())) == len(set.union(*names.values()))


def test_the_quickstart_world(tmp_path):
    write_world(tmp_path, 0)
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
    for kind in KINDS.values():
        assert 6 <= len(kind["attributes"]) <= 10
        assert all(len(a["says"]) == len(a["asks"]) == 3 for a in kind["attributes"].values())


@pytest.mark.parametrize(("seed", "version", "key"), [(8, None, "seed"), (7, "of before", "version")])
def test_another_world_is_refused(tmp_path, seed, version, key):
    make_quickstart_data(tmp_path, 7)
    written = (tmp_path / "test.jsonl").stat().st_mtime_ns
    make_quickstart_data(tmp_path, 7)
    assert (tmp_path / "test.jsonl").stat().st_mtime_ns == written
    if version:
        (tmp_path / "world.json").write_text(json.dumps({"seed": 7, "version": version}))
    with pytest.raises(InputError, match=f"tiny world with another {key}.*use another `--run.dir`"):
        make_quickstart_data(tmp_path, seed)


def test_a_finished_run_is_read_whatever_the_version_of_its_world(tmp_path):
    make_quickstart_data(tmp_path / "data")
    (tmp_path / "data/world.json").write_text(json.dumps({"seed": 0, "version": "of before"}))
    settings = asdict(settings_of("--run.dir", tmp_path, "--data.format", "tiny_world"))
    write_json(tmp_path / "run.json", {"command": "", "settings": settings})
    run = load_run_folder(tmp_path)
    assert len(run.train_turns) > 0 and len(run.collections[""]) > 0
    with pytest.raises(InputError, match="tiny world with another version"):
        prepare_data(run.settings)


def test_follow_ups_refer_and_rewrites_stand_alone():
    world = World(random.Random(5), "dev", mixed_kinds(20))
    for _ in range(20):
        for history, question in simulate(world, 6):
            name = question.fact.entity.name
            assert name in question.rewrite
            if question.kind in ("first", "switch"):
                assert name in question.text
            if question.kind == "follow_up":
                assert name not in question.text
                assert any(name in message["content"] for message in history)
