"""Stages resume after their last whole record, never mix settings, and are complete only with a manifest."""

import logging
import os
import socket
import subprocess
import sys
from dataclasses import dataclass, replace

import pytest

from core.distributed import lock_folder
from core.errors import InputError
from core.stage_runner import run_stage
from core.stages import Stage, load_stage
from tests.conftest import ROOT, lines

NAME = "round-1/scores"


@dataclass(frozen=True)
class Item:
    id: str
    value: str = ""


ITEMS = [Item(name) for name in "abcd"]
WHOLE = [{"id": name, "value": name.upper()} for name in "abcd"]


def stage_in(run_dir, alpha=0.05, model="x"):
    return Stage(run_dir, NAME, {"alpha": alpha}, {"model": model}, Item)


def complete(stage, batches=None, **options):
    """Complete a stage in batches of two; `batches` collects the ids of those that are computed."""

    def load_worker():
        def work(batch):
            if batches is not None:
                batches.append("".join(item.id for item in batch))
            return [replace(item, value=item.id.upper()) for item in batch]

        return work

    return run_stage(stage, ITEMS, 2, load_worker, lambda items: {"total": sum(1 for _ in items)}, **options)


def never():
    raise AssertionError("there is nothing to do")


def test_records_are_checked_objects(tmp_path):
    stage = complete(stage_in(tmp_path))
    assert lines(stage.folder) == WHOLE and len(stage) == 4
    assert list(stage) == [Item(name, name.upper()) for name in "abcd"]


# ------------------------------------------------------------------ resuming


def test_a_stage_resumes_after_its_last_whole_record(tmp_path, caplog):
    caplog.set_level(logging.INFO, "rewriter")
    stage, batches = stage_in(tmp_path), []
    part = stage.folder / "part-0.jsonl"
    part.write_text('{"id": "a", "value": "kept"}\n{"id": "b", "val')  # killed while writing
    assert stage.done() == {"a"}
    complete(stage, batches)
    assert lines(stage.folder) == [{"id": "a", "value": "kept"}, *WHOLE[1:]] and not part.exists()
    assert batches == ["ab", "cd"]  # whole batches, so that the batch of every record stays the same
    assert f"{NAME}: resuming after 1 finished records" in caplog.text


def append_as(monkeypatch, rank, stage, *records):
    monkeypatch.setenv("RANK", str(rank))
    stage.append(records)
    monkeypatch.delenv("RANK")


def test_parts_of_several_processes_are_merged_in_the_order_of_the_input(tmp_path, monkeypatch):
    stage, batches = stage_in(tmp_path), []
    append_as(monkeypatch, 1, stage, Item("d", "D"), Item("a", "A"))
    append_as(monkeypatch, 0, stage, Item("c", "C"))
    assert [path.name for path in sorted(stage.folder.glob("part-*"))] == ["part-0.jsonl", "part-1.jsonl"]
    complete(stage, batches)
    assert batches == ["ab"] and lines(stage.folder) == WHOLE
    assert not list(stage.folder.glob("part-*"))


@pytest.mark.parametrize("left", [(), (1,), (0, 1)])
def test_a_crash_between_merging_and_the_manifest_is_repaired(tmp_path, monkeypatch, left):
    """Merging writes `records.jsonl`, then deletes the parts; the crash leaves some of them."""
    stage = stage_in(tmp_path)
    append_as(monkeypatch, 0, stage, Item("a", "A"), Item("c", "C"))
    append_as(monkeypatch, 1, stage, Item("d", "D"), Item("b", "B"))
    parts = {rank: (stage.folder / f"part-{rank}.jsonl").read_text() for rank in left}
    stage.merge_parts("abcd")
    for rank, text in parts.items():
        (stage.folder / f"part-{rank}.jsonl").write_text(text)
    assert not stage.complete
    again = run_stage(stage_in(tmp_path), ITEMS, 2, never, lambda items: {"total": len(list(items))})
    assert again.complete and again.manifest["counts"] == {"total": 4}
    assert lines(stage.folder) == WHOLE and not list(stage.folder.glob("part-*"))


def test_a_complete_stage_is_skipped(tmp_path, caplog):
    caplog.set_level(logging.INFO, "rewriter")
    complete(stage_in(tmp_path))
    stage = stage_in(tmp_path)
    assert run_stage(stage, ITEMS, 2, never, never) is stage
    assert f"{NAME}: complete, nothing to do" in caplog.text


def test_the_batch_size_that_memory_allows_is_reported(tmp_path, caplog):
    caplog.set_level(logging.INFO, "rewriter")
    stage = stage_in(tmp_path)

    def work(batch):
        stage.batch_limit = 4096
        return batch

    run_stage(stage, ITEMS, 2, lambda: work, lambda items: {"total": len(list(items))})
    assert stage.manifest["counts"] == {"total": 4, "batch_tokens": 4096}
    assert f"{NAME}: 4 turns (4096 batch_tokens)" in caplog.text


def test_too_many_failures_stop_the_run(tmp_path):
    def count(items):
        return {"total": len(list(items)), "failed": 2, "reasons": {"empty answer": 2}}

    expected = (
        r"round-1/scores: 2 of 4 turns failed \(reasons: 2 empty answer\), more than `run.max_failed_fraction` = 0.1"
    )
    with pytest.raises(InputError, match=expected):
        run_stage(stage_in(tmp_path), ITEMS, 2, lambda: lambda batch: batch, count, 0.1)
    with pytest.raises(InputError, match=expected):  # the same command computes nothing again
        run_stage(stage_in(tmp_path), ITEMS, 2, never, count, 0.1)
    assert run_stage(stage_in(tmp_path), ITEMS, 2, never, count, 0.5).complete


# ------------------------------------------------------------------ errors


def test_a_stage_refuses_to_mix(tmp_path):
    stage = stage_in(tmp_path)
    with pytest.raises(InputError, match=r"`settings.alpha` was 0.05, is 0.1\..*--run.redo_from round-1/scores"):
        stage_in(tmp_path, alpha=0.1)
    with pytest.raises(InputError, match="`inputs.model` was 'x', is 'y'"):
        stage_in(tmp_path, model="y")
    stage.expect(inputs={"model": "x"})
    with pytest.raises(InputError, match="`inputs.model` was 'x', is 'y'"):
        stage.expect(inputs={"model": "y"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"id": "a"}\n{"id": "a"}\n', r"part-0.jsonl:2: the id is missing or repeated. Cut .*`head -n 1`"),
        ('{"id": "a"}\n\0\0\0\n', "part-0.jsonl:2: not valid JSON.*`head -n 1`"),
        ('{"value": "A"}\n', "part-0.jsonl:1: the id is missing"),
        ('{"id": "zz"}\n', "contains a record of `zz`, which is not in this run"),
        ('{"id": "a", "value": 7}\n', "records.jsonl:1: `value` must be a string, got 7"),
    ],
)
def test_damaged_records_are_named_and_never_counted(tmp_path, text, expected):
    stage = stage_in(tmp_path)
    (stage.folder / "part-0.jsonl").write_text(text)
    with pytest.raises(InputError, match=expected):
        run_stage(stage, ITEMS, 2, lambda: lambda batch: batch, lambda items: {"total": len(list(items))})
    assert not stage.complete


def test_only_a_manifest_makes_a_stage_complete(tmp_path):
    stage = stage_in(tmp_path)
    stage.write([Item("a")])
    with pytest.raises(InputError, match=f"the stage `{NAME}` is not complete in"):
        load_stage(tmp_path, NAME, Item)
    stage.finish({"total": 1})
    loaded = load_stage(tmp_path, NAME, Item)
    assert loaded.identity == stage.identity and list(loaded) == [Item("a")]
    assert loaded.manifest["counts"] == {"total": 1} and "torch" in loaded.manifest["versions"]


def test_records_that_changed_after_the_end_are_refused(tmp_path):
    stage = complete(stage_in(tmp_path))
    with stage.records_file.open("a") as handle:
        handle.write('{"id": "e"}\n')
    for use in (lambda: load_stage(tmp_path, NAME, Item), lambda: complete(stage_in(tmp_path))):
        with pytest.raises(InputError, match="records.jsonl has changed since the stage ended; delete"):
            use()


@pytest.mark.parametrize("text", ["{}", "[1]", "{broken"])
def test_a_damaged_manifest_is_named(tmp_path, text):
    complete(stage_in(tmp_path)).manifest_file.write_text(text)
    with pytest.raises(InputError, match="manifest.json is damaged"):
        load_stage(tmp_path, NAME, Item)


def test_a_run_folder_is_locked_by_one_process(tmp_path):
    lock_folder(tmp_path)
    lock_folder(tmp_path)  # locking again in the same process has no effect
    code = f"from pathlib import Path; from core.distributed import lock_folder; lock_folder(Path({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    holder = f"another process (process {os.getpid()} on {socket.gethostname()}) is using {tmp_path}"
    assert done.returncode and holder in done.stderr
