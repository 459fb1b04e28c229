"""Turns: good files are read, bad ones are named by file, line and field."""

import json

import pytest
from core.inputs import same_data

from core.cli import read_settings
from core.errors import InputError
from rewriter.conversations import read_turns

TURN = {"id": "c1_1", "history": [{"role": "user", "content": "Hi"}], "question": "Who?"}


def write(path, *records):
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records))
    return path


def test_turns_keep_every_field(tmp_path):
    full = TURN | {"answers": ["Ann"], "relevant": {"d1": 2}, "rewrite": "Who is it?", "kind": "first"}
    turn = read_turns(write(tmp_path / "t.jsonl", full))[0]
    assert (turn.answers, turn.relevant, turn.rewrite, turn.kind, turn.group) == (
        ("Ann",),
        {"d1": 2},
        "Who is it?",
        "first",
        "c1",
    )


def test_limit_reads_the_first(tmp_path):
    path = write(tmp_path / "t.jsonl", *(TURN | {"id": str(i)} for i in range(5)))
    assert [turn.id for turn in read_turns(path, 2)] == ["0", "1"]


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([{"id": "a", "history": []}], r":1: the field `question` is missing \(there are: `id`, `history`\)"),
        ([TURN | {"question": " "}], ":1: `question` must be a text that is not empty"),
        ([TURN | {"history": "no"}], ":1: `history` must be a list"),
        ([TURN | {"history": [{"role": "bot", "content": "x"}]}], ":1: `history` must be a list of"),
        ([TURN | {"relevant": {"d": "yes"}}], ":1: `relevant` must be document ids with whole-number grades"),
        ([TURN | {"answers": "Ann"}], ":1: `answers` must be a list, got 'Ann'"),
        ([TURN, TURN], ":2: the id `c1_1` stands twice"),
        (["{oops"], ":1: not valid JSON"),
        ([], "no turns in it"),
    ],
)
def test_bad_turns_are_named(tmp_path, records, expected):
    with pytest.raises(InputError, match=expected):
        read_turns(write(tmp_path / "t.jsonl", *records))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"gone.jsonl: cannot be read \(No such file"):
        read_turns(tmp_path / "gone.jsonl")


def test_another_run_folder_reads_the_same_tiny_world(tmp_path):
    (tmp_path / "data").mkdir()
    for which in ("train", "test", "corpus"):
        write(tmp_path / f"data/{which}.jsonl", TURN)
    data = same_data(read_settings("", ["--run.dir", str(tmp_path), "--data.format=tiny_world"]))
    assert data.format == "records"
    assert [data.train, data.corpus] == [str(tmp_path / f"data/{which}.jsonl") for which in ("train", "corpus")]
