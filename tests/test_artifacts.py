"""Stages go on after a kill, refuse to mix, and are complete only with a manifest."""

import json
import subprocess
import sys
from dataclasses import dataclass

import pytest

from core.artifacts import Stage, completed, hold, in_batches, read_json_lines
from core.errors import InputError
from core.runtime import Progress
from core.stages import carry_out
from tests.conftest import ROOT


@dataclass
class Item:
    id: str


def make(batch):
    return [{"id": item.id, "value": item.id.upper()} for item in batch]


BATCHES = [[Item("a"), Item("b")], [Item("c"), Item("d")]]


def test_a_stage_goes_on_after_its_last_whole_record(tmp_path):
    (tmp_path / "part-0.jsonl").write_text('{"id": "a", "value": "kept"}\n{"id": "b", "val')  # killed while writing
    stage = Stage(tmp_path, {"k": 1}, {})
    assert stage.done() == {"a"}
    counts = in_batches(stage, BATCHES, make, Progress("test", 4))
    assert counts == {"made": 3, "found": 1}
    assert [(r["id"], r["value"]) for r in stage.records()] == [("a", "kept"), ("b", "B"), ("c", "C"), ("d", "D")]


def test_parts_of_several_processes_are_one_stage(tmp_path):
    Stage(tmp_path, {}, {}, rank=0).append([{"id": "a"}])
    Stage(tmp_path, {}, {}, rank=1).append([{"id": "b"}])
    assert Stage(tmp_path, {}, {}).done() == {"a", "b"}


def test_a_stage_refuses_to_mix(tmp_path):
    Stage(tmp_path / "scores", {"alpha": 0.05}, {"model": "x"})
    with pytest.raises(InputError, match=r"`settings.alpha` was 0.05, is 0.1.*--run.redo_from scores"):
        Stage(tmp_path / "scores", {"alpha": 0.1}, {"model": "x"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"id": "a"}\n{"id": "a"}\n', "part-0.jsonl:2: the id is missing, or stands twice"),
        ('{"id": "a"}\n\0\0\0\n', "part-0.jsonl:2: not valid JSON"),
        ('{"value": 1}\n', "part-0.jsonl:1: the id is missing"),
        ('{"id": "zz"}\n', "holds a record of `zz`, which this run does not have"),
    ],
)
def test_damaged_records_are_named_and_never_counted(tmp_path, text, expected):
    (tmp_path / "part-0.jsonl").write_text(text)
    with pytest.raises(InputError, match=expected):
        carry_out(Stage(tmp_path, {}, {}), lambda: BATCHES, lambda: make, lambda records: {})


def test_a_run_folder_is_held_by_one_process(tmp_path):
    hold(tmp_path)
    hold(tmp_path)  # again by the same process: nothing
    code = f"from pathlib import Path; from core.artifacts import hold; hold(Path({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode and "another process is at work" in done.stderr


@pytest.mark.parametrize("text", ["{}", "[1]", "{broken"])
def test_a_damaged_manifest_is_named(tmp_path, text):
    Stage(tmp_path / "rankings", {}, {}).finish({})
    (tmp_path / "rankings/manifest.json").write_text(text)
    with pytest.raises(InputError, match="manifest.json is damaged"):
        completed(tmp_path / "rankings")


def test_only_a_manifest_makes_it_complete(tmp_path):
    stage = Stage(tmp_path / "rankings", {}, {})
    stage.append([{"id": "a"}])
    with pytest.raises(InputError, match="`rankings` is not complete"):
        completed(tmp_path / "rankings")
    stage.finish({"total": 1})
    assert completed(tmp_path / "rankings").identity() == stage.identity()
    manifest = json.loads((tmp_path / "rankings/manifest.json").read_text())
    assert manifest["counts"] == {"total": 1} and "torch" in manifest["versions"]


def test_a_complete_stage_is_passed_over(tmp_path):
    def explode():
        raise AssertionError("must not be called")

    stage = Stage(tmp_path, {}, {})
    stage.finish({})
    assert carry_out(stage, explode, explode, explode) is stage


def test_too_many_failures_stop_the_run(tmp_path):
    def count(records):
        return {"total": len(list(records)), "failed": 2, "reasons": {"empty answer": 2}}

    with pytest.raises(
        InputError, match=r"2 of 4 turns failed \(reasons: 2 empty answer\), more than `run.max_failed_fraction` = 0.1"
    ):
        carry_out(Stage(tmp_path, {}, {}), lambda: BATCHES, lambda: make, count, most_failed=0.1)
    assert len(list(Stage(tmp_path, {}, {}).records())) == 4  # what was computed is there


@pytest.mark.parametrize(
    ("text", "expected"),
    [("{}\n{broken\n", ":2: not valid JSON"), ("[1]\n", ":1: expected a JSON object, got list")],
)
def test_bad_lines_are_named(tmp_path, text, expected):
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=expected):
        list(read_json_lines(path))


def test_bytes_that_are_no_text_are_named(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"id": "\xff\xfe"}\n')
    with pytest.raises(InputError, match="not UTF-8"):
        list(read_json_lines(path))
