"""Several processes on a CPU: the same records as one process, one adapter, one log; and failures."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import QUICK, ROOT, finish, lines, start, wait_until
from train.pipeline import stage_names

pytestmark = pytest.mark.slow
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
RECORDS = ("candidates", "rankings", "scores", "pairs")
LAUNCH = [sys.executable, "-m", "accelerate.commands.launch", "--quiet"]
SMALL = [
    *QUICK, "--run.limit", "12", "--pairs.drop_fraction", "0.2",
    "--sft.num_train_epochs", "1", "--sft.per_device_train_batch_size", "2",
    "--dpo.num_train_epochs", "1", "--dpo.per_device_train_batch_size", "2",
]  # fmt: skip
STAGES = stage_names(2)
UNTRAINED = ("original", "history", "base", "reference")


@pytest.fixture(scope="module", autouse=True)
def no_gpu():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        yield


def flags(run: Path, *more: str) -> list[str]:
    return ["--config", "configs/quickstart.yaml", "--run.dir", str(run), *SMALL, *more]


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> tuple[Path, str]:
    """The whole quickstart in two processes: its folder and its output."""
    run = tmp_path_factory.mktemp("processes") / "two"
    return run, finish([*TORCHRUN, "train/dpo.py", *flags(run)])


@pytest.fixture(scope="module")
def one(tmp_path_factory) -> Path:
    """The same in one process, for the stages before training."""
    run = tmp_path_factory.mktemp("processes") / "one"
    finish([sys.executable, "train/dpo.py", *flags(run, "--run.until", "pairs")])
    systems = f"[{','.join(UNTRAINED)}]"
    finish([sys.executable, "train/dpo.py", *flags(run, "--run.only", "evaluation", "--evaluation.systems", systems)])
    return run


def by_id(folder: Path) -> dict[str, dict]:
    return {record["id"]: record for record in lines(folder)}


def differences(a: object, b: object, where: str = "") -> Iterator[str]:
    """Paths at which two records differ; numbers may differ by 1e-5."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        for key in a:
            yield from differences(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i in range(len(a)):
            yield from differences(a[i], b[i], f"{where}[{i}]")
    elif a != b and not (isinstance(a, float) and b == pytest.approx(a, rel=0, abs=1e-5)):
        yield f"{where}: {a!r} and {b!r}"


@pytest.mark.parametrize("stage", RECORDS)
def test_records_equal_those_of_one_process(two, one, stage):
    folders = [run / "round-1" / stage for run in (two[0], one)]
    assert not list(differences(*map(by_id, folders)))
    assert [record["id"] for record in lines(folders[0])] == [record["id"] for record in lines(folders[1])]


def test_pairs_are_in_the_order_of_the_turns(two):
    turns = [json.loads(line)["id"] for line in (two[0] / "data/train.jsonl").read_text().splitlines()]
    pairs = [pair["id"] for pair in lines(two[0] / "round-1/pairs")]
    assert len(pairs) > 2 and pairs == sorted(pairs, key=turns.index)


def test_untrained_systems_are_evaluated_alike(two, one):
    records, expected = by_id(two[0] / "evaluation"), by_id(one / "evaluation")
    assert len(records) == 12
    kept = {key: {name: record["systems"][name] for name in UNTRAINED} for key, record in records.items()}
    assert not list(differences(kept, {key: record["systems"] for key, record in expected.items()}))


def test_all_trainings_end_with_one_adapter(two):
    run, output = two
    assert "round-1/dpo: reward margin 0.0000 at step 0" in output
    for stage in ("round-1/sft", "round-1/dpo", "round-2/dpo"):
        assert json.loads((run / stage / "manifest.json").read_text())["counts"]["steps"] > 1
        assert len(list((run / stage).rglob("adapter_model.safetensors"))) == 1
        assert not (run / stage / "checkpoints").exists()


def test_rank_0_alone_logs(two):
    _, output = two
    for stage in STAGES:
        assert sum(line.startswith(f"{stage}: ") and "->" in line for line in output.splitlines()) == 1
    for line in ("settings: ", "evaluated 12 turns, 12 of them", "total: "):
        assert output.count(line) == 1


def test_one_process_takes_over_what_two_have_completed(two):
    output = finish([sys.executable, "train/dpo.py", *flags(two[0])])
    assert output.count("complete, nothing to do") == len(STAGES)


def up_to_pairs(run: Path, processes: int) -> list[str]:
    """A run of 36 turns: 3 batches of candidates, 1 of rankings, 5 of scores. With two or three processes the shards
    are uneven; with five, two have no candidates and four no rankings."""
    more = ["--run.limit", "36", "--rewriter.max_new_tokens", "16", "--generator.max_new_tokens", "4"]
    torchrun = [*TORCHRUN[:-1], str(processes)] if processes > 1 else [sys.executable]
    return [*torchrun, "train/dpo.py", *flags(run, *more, "--run.until", "pairs")]


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """The records of `up_to_pairs` in one process."""
    run = tmp_path_factory.mktemp("shards") / "alone"
    finish(up_to_pairs(run, 1))
    return run / "round-1"


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> tuple[Path, str]:
    """`up_to_pairs` in two processes, with rank 1 killed during the scores: its folder and its output."""
    run = tmp_path_factory.mktemp("shards") / "killed"
    parts = [run / f"round-1/scores/part-{rank}.jsonl" for rank in (0, 1)]
    process = start(up_to_pairs(run, 2))
    wait_until(lambda: all(part.exists() and b"\n" in part.read_bytes() for part in parts), process, "two parts")
    ranks = {rank.environ()["RANK"]: rank for rank in psutil.Process(process.pid).children()}
    before = time.monotonic()
    ranks["1"].kill()
    output, _ = process.communicate(timeout=100)
    assert time.monotonic() - before < 60 and process.returncode
    assert not any(rank.is_running() for rank in ranks.values())
    return run, output


def check_same(folder: Path, expected: Path) -> None:
    """Check that no record is missing, repeated or in another order, and that the numbers are equal."""
    for stage in RECORDS:
        records, of_one = lines(folder / stage), lines(expected / stage)
        assert [record["id"] for record in records] == [record["id"] for record in of_one]
        assert not list(differences(records, of_one)), stage
        assert not list((folder / stage).glob("part-*"))


@pytest.mark.parametrize("processes", [2, 3, 5])
def test_uneven_and_empty_shards(alone, tmp_path, processes):
    finish(up_to_pairs(tmp_path / "run", processes))
    assert len(lines(alone / "candidates")) == 36 and len(lines(alone / "pairs")) > 3
    check_same(tmp_path / "run/round-1", alone)


def test_a_killed_process_ends_the_other(killed):
    run, output = killed
    assert "Signal 9 (SIGKILL)" in output
    assert output.count("rerun the command to resume.") == 1
    assert not (run / "round-1/scores/records.jsonl").exists()


@pytest.mark.parametrize("processes", [1, 3])
def test_another_number_of_processes_resumes(killed, alone, tmp_path, processes):
    shutil.copytree(killed[0], tmp_path / "run")
    assert "round-1/scores: resuming after " in finish(up_to_pairs(tmp_path / "run", processes))
    check_same(tmp_path / "run/round-1", alone)


@pytest.mark.parametrize("words", [["--cpu", "--num_processes", "2"], ["--num_processes", "2"]])
def test_accelerate_launch_that_starts_one_process_for_several(tmp_path, words):
    settings = ["--config", "configs/quickstart.yaml", "--run.dir", str(tmp_path / "a run")]
    output = finish([*LAUNCH, *words, "train/dpo.py", *settings], ok=False)
    assert f"`torchrun --nproc_per_node N train/dpo.py {shlex.join(settings)}`" in output
    assert not (tmp_path / "a run").exists()


def test_each_process_gets_the_values_of_all(tmp_path):
    script = tmp_path / "gathers.py"
    script.write_text("from core.distributed import gather, process\nprint(gather(process()[0] or None))\n")
    done = subprocess.run(
        [*TORCHRUN, script],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stdout.count("[None, 1]") == 2, done.stderr


@pytest.mark.parametrize("rank", [0, 1])
def test_a_failure_in_one_process_ends_the_other(tmp_path, rank):
    script = tmp_path / "fails.py"
    script.write_text(
        "from core.errors import InputError\n"
        "from core.cli import run_command\n"
        "from core.distributed import process, wait_for_all\n"
        "def main():\n"
        "    wait_for_all()\n"
        f"    if process()[0] == {rank}:\n"
        "        raise InputError('this file is missing.')\n"
        "    wait_for_all()\n"
        "    print('not reached')\n"
        "run_command(main)\n"
    )
    done = subprocess.run([*TORCHRUN, script], cwd=ROOT, capture_output=True, text=True, timeout=100)
    output = done.stdout + done.stderr
    assert done.returncode and output.count("error: this file is missing.") == 1
    assert "not reached" not in output and "RuntimeError" not in output
