"""Work in several processes: the same results in the same order, and what is said when one is lost."""

import gc
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import psutil
import pytest
import torch

from core.artifacts import Stage, in_batches
from core.errors import InputError
from core.runtime import Progress
from core.stages import shared_out
from core.workers import beside, cores, map_on_cores
from scoring.generator import answer_all
from tests.conftest import ROOT
from tests.test_generator import READINGS


@dataclass
class Thing:
    id: str


def test_answers_are_those_of_one_process(lm):
    chunks = [READINGS[:2], READINGS[2:]]
    alone, together = (
        [one for made in map_on_cores(lambda some: answer_all(lm, some, 12, 400), chunks, n) for one in made]
        for n in (1, 2)
    )
    assert [one.answer for one in together] == [one.answer for one in alone]
    for one, other in zip(together, alone, strict=True):
        assert one.stats.h0 == pytest.approx(other.stats.h0, abs=1e-4)
        assert one.stats.hd == pytest.approx(other.stats.hd, abs=1e-4)


def test_order_processes_and_threads():
    def work(number):
        time.sleep(0.2 * (number == 0))  # the first ends last
        return number, os.getpid(), torch.get_num_threads(), beside()

    found = list(map_on_cores(work, range(6), 2))
    assert [number for number, *_ in found] == list(range(6))
    processes = {process for _, process, *_ in found}
    assert len(processes) == 2 and os.getpid() not in processes
    assert {tuple(rest) for _, _, *rest in found} == {(1, 2)}
    assert beside() == 1


def test_a_process_that_collects_garbage_copies_no_memory():
    objects = [[number] for number in range(400_000)]  # some 40 MB

    def work(_):
        before = psutil.Process().memory_full_info().uss
        gc.collect()
        return psutil.Process().memory_full_info().uss - before

    assert max(map_on_cores(work, range(2), 2)) < 8e6
    assert gc.get_freeze_count() == 0 and len(objects) == 400_000


def test_a_stage_keeps_its_order_and_passes_over_what_is_done(tmp_path):
    things = [[Thing(f"{i}{j}") for j in range(3)] for i in range(4)]
    stage, progress = Stage(tmp_path / "stage", {}, {}), Progress("test", 12)
    stage.append([{"id": "00", "made": 0}, *({"id": f"1{j}", "made": 0} for j in range(3))])

    def make(batch):
        assert batch[0].id != "10"  # that batch is there already
        return [{"id": thing.id, "made": os.getpid()} for thing in batch]

    counts = in_batches(stage, things, make, progress, 2)
    records = list(stage.records())
    assert [r["id"] for r in records] == [
        "00",
        "10",
        "11",
        "12",
        "01",
        "02",
        *(f"{i}{j}" for i in (2, 3) for j in "012"),
    ]
    assert {r["made"] for r in records[4:]}.isdisjoint({0, os.getpid()})
    assert counts == {"made": 8, "found": 4} and progress.count == 12 and progress.known == 3


def test_errors_come_through():
    def work(number):
        if number == 1:
            raise InputError("the field `question` is missing")
        return number

    with pytest.raises(InputError, match="the field `question` is missing"):
        list(map_on_cores(work, range(3), 2))


def test_a_lost_process_is_said():
    def work(number):
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(InputError, match=r"a process that worked on one of the cores was lost.*`batch_tokens`"):
        list(map_on_cores(work, range(3), 2))
    assert list(map_on_cores(abs, [-1, -2], 2)) == [1, 2]


def two_at_work(parent: subprocess.Popen) -> list[psutil.Process]:
    """The processes that a process has begun, once there are two."""
    deadline = time.monotonic() + 60
    while len(children := psutil.Process(parent.pid).children()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(2.0)  # for them to begin
    return children


def test_processes_end_with_a_parent_that_is_killed():
    code = "import time\nfrom core.workers import map_on_cores\nlist(map_on_cores(time.sleep, [300, 300], 2))"
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    try:
        children = two_at_work(parent)
    finally:
        parent.kill()
        parent.wait()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive


@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["to the parent", "to all, as a terminal does"])
def test_ctrl_c_ends_at_once_with_one_line(send):
    code = "import time\nfrom core.workers import map_on_cores\nfrom core.runtime import run_command\n"
    code += "run_command(lambda: list(map_on_cores(time.sleep, [300, 300, 300], 2)))"
    parent = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore it
    )  # fmt: skip
    try:
        children = two_at_work(parent)
        send(parent.pid, signal.SIGINT)
        said = parent.communicate(timeout=20)[1]
    finally:
        parent.kill()
    assert (parent.returncode, said) == (130, "stopped.\n")
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive


def test_a_model_on_a_gpu_stays_in_its_process():
    assert cores("cuda:1") == 1
    assert cores("cpu") == (torch.get_num_threads() if sys.platform == "linux" else 1)


@pytest.mark.parametrize(
    ("items", "workers", "sizes"),
    [
        (0, 2, []),
        (1, 2, [1]),
        (5, 2, [3, 1, 1]),
        (10, 2, [5, 3, 1, 1]),
        (100, 2, [34, 22, 15, 10, 8, 6, 3, 1, 1]),
        (400, 3, [64, 64, 61, 47, 37, 29, 22, 17, 14, 10, 8, 8, 7, 4, 3, 2, 1, 1, 1]),
        (70, 1, [64, 6]),
    ],
)
def test_work_is_shared_out_so_that_workers_end_together(items, workers, sizes):
    batches = shared_out(list(range(items)), 64, workers)
    assert [len(batch) for batch in batches] == sizes
    rest = [item for batch in batches[1:] for item in batch]
    assert shared_out(rest, 64, workers) == batches[1:]  # those of a run that goes on
    assert [item for batch in batches for item in batch] == list(range(items))
