"""Turns: good files are read, bad ones are named by file, line and field."""

import pytest

from core.data_sources import DataSource, data_sources
from core.errors import InputError
from rewriter.conversations import load_turns, read_turns
from tests.conftest import settings_of, write_lines

TURN = {"id": "c1_1", "history": [{"role": "user", "content": "Hi"}], "question": "Who?"}


def test_turns_keep_every_field(tmp_path):
    fields = {"answers": ["Ann"], "relevant": {"d1": 2}, "rewrite": "Who is it?", "kind": "first"}
    write_lines(tmp_path / "t.jsonl", [TURN | fields])
    (turn,) = read_turns(tmp_path / "t.jsonl")
    assert (turn.answers, turn.relevant, turn.rewrite, turn.kind) == (("Ann",), {"d1": 2}, "Who is it?", "first")
    assert turn.group == "c1"


def test_null_counts_as_missing(tmp_path):
    write_lines(tmp_path / "t.jsonl", [TURN | {"answers": None, "rewrite": None}])
    (turn,) = read_turns(tmp_path / "t.jsonl")
    assert turn.answers == () and turn.rewrite is None


def test_limit_takes_the_first(tmp_path):
    path = write_lines(tmp_path / "t.jsonl", (TURN | {"id": str(i)} for i in range(5)))
    turns = load_turns([DataSource("", "records", train=path)], "train", 2)
    assert [turn.id for turn in turns] == ["0", "1"] and turns.by_id["1"].question == "Who?"
    assert turns.fingerprint["limit"] == 2


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([{"id": "a", "history": []}], r":1: the field `question` is missing \(fields: `id`, `history`\)"),
        ([{"id": "a", "question": None, "history": []}], ":1: the field `question` is missing"),
        ([TURN | {"question": " "}], ":1: `question` must be a string that is not empty"),
        ([TURN | {"id": "a\nb"}], ":1: `id` must be a string without control characters"),
        ([TURN | {"id": 7}], ":1: `id` must be a string, got 7"),
        ([TURN | {"history": "no"}], ":1: `history` must be a list, got 'no'"),
        ([TURN | {"history": [{"role": "bot", "content": "x"}]}], ":1: `history.0..role` must be .*assistant.*'bot'"),
        ([TURN | {"history": [{"role": "user"}]}], ":1: `history.0..content` is missing"),
        ([TURN | {"relevant": {"d": "yes"}}], ":1: `relevant.d` must be a whole number, got 'yes'"),
        ([TURN | {"relevant": {"d": 2000}}], ":1: `relevant.d` must be less than or equal to 1000, got 2000"),
        ([TURN | {"answers": "Ann"}], ":1: `answers` must be a list, got 'Ann'"),
        ([TURN, TURN], ":2: the id `c1_1` is repeated"),
        ([], "no turns in the file"),
    ],
)
def test_bad_turns_are_named(tmp_path, records, expected):
    write_lines(tmp_path / "t.jsonl", records)
    with pytest.raises(InputError, match=f"t.jsonl.*{expected}"):
        read_turns(tmp_path / "t.jsonl")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"gone.jsonl: cannot be read \(No such file"):
        read_turns(tmp_path / "gone.jsonl")


def test_the_tiny_world_keeps_its_files_in_the_run_folder(tmp_path):
    (source,) = data_sources(settings_of("--data.format", "tiny_world").data, tmp_path)
    assert source.format == "records" and source.test == str(tmp_path / "data/test.jsonl")
    files = {
        split: write_lines(tmp_path / f"data/{split}.jsonl", [TURN | {"id": split}]) for split in ("train", "test")
    }
    assert {split: str(source.turns_file(split)) for split in files} == files
    assert [turn.id for turn in load_turns([source], "test")] == ["test"]
