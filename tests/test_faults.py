"""Runs that are killed, stopped, out of disk space or interrupted by an error: the same command resumes, with the
result of an uninterrupted run."""

import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from core.artifacts import sha256
from tests.conftest import finish, start, wait_until
from train.pipeline import stage_names

pytestmark = pytest.mark.slow
STAGES = stage_names(2)
RECORDS = [stage for stage in STAGES if not stage.endswith(("sft", "dpo"))]
ADAPTERS = ["round-1/sft/adapter", "round-1/dpo/adapter", "round-2/dpo/adapter", "adapter"]
SEED = 23
SMALL = [
    "--config", "configs/quickstart.yaml", "--run.threads", "1", "--run.limit", "12", "--rewriter.n", "4",
    "--rewriter.max_new_tokens", "24", "--generator.max_new_tokens", "8", "--pairs.drop_fraction", "0.2",
    "--sft.num_train_epochs", "2", "--sft.per_device_train_batch_size", "2", "--sft.save_steps", "1",
    "--dpo.num_train_epochs", "2", "--dpo.per_device_train_batch_size", "2", "--dpo.save_steps", "1",
    "--evaluation.resamples", "50",
]  # fmt: skip
# Python imports `sitecustomize` before it runs a command. This one logs the stage of each model call and the
# number of records at that time, and raises an error at the call that the environment selects.
HOOK = """
import os
from pathlib import Path

if "CALLS" in os.environ:
    from torch.nn.modules.module import register_module_forward_pre_hook

    run, calls = Path(os.environ["RUN"]), []

    def count(module, arguments):
        if type(module).__name__.endswith("ForCausalLM"):
            folder = max(run.rglob("plan.json"), key=lambda path: path.stat().st_mtime_ns).parent
            part = folder / "part-0.jsonl"
            calls.append(str(folder.relative_to(run)))
            with open(os.environ["CALLS"], "a") as handle:
                print(calls[-1], part.read_bytes().count(b"\\n") if part.exists() else 0, file=handle)
            if os.environ.get("FAIL") == f"{calls[-1]} {calls.count(calls[-1])}":
                raise ArithmeticError("the planted fault")

    register_module_forward_pre_hook(count)
"""


@pytest.fixture(scope="module", autouse=True)
def no_gpu(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("hook")
        (folder / "sitecustomize.py").write_text(HOOK)
        patch.setenv("PYTHONPATH", str(folder))
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        yield


def command(run: Path, *more: str, processes: int = 1) -> list[str]:
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node", str(processes)] if processes > 1 else []
    return [sys.executable, *torchrun, "train/dpo.py", *SMALL, "--run.dir", str(run), *more]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("faults") / "undisturbed"
    finish(command(run), env=os.environ | {"CALLS": str(run.parent / "calls"), "RUN": str(run)})
    return run


def check_equal(run: Path, expected: Path) -> None:
    """Check that a run equals another byte for byte (records, adapters, tables) and has no left-over files."""
    for stage in RECORDS:
        assert sha256(run / stage / "records.jsonl") == sha256(expected / stage / "records.jsonl"), stage
    for folder in ADAPTERS:
        name = f"{folder}/adapter_model.safetensors"
        assert sha256(run / name) == sha256(expected / name), folder
    for name in ("table.md", "metrics.json", "per_turn.jsonl"):
        assert (run / "evaluation" / name).read_text() == (expected / "evaluation" / name).read_text()
    files, expected_files = ({str(path.relative_to(top)) for path in top.rglob("*")} for top in (run, expected))
    assert {name for name in files ^ expected_files if not Path(name).name.startswith(".")} == set()


def seconds_of(run: Path, stage: str) -> float:
    return json.loads((run / stage / "manifest.json").read_text())["seconds"]


def has_saved(folder: Path, step: int) -> bool:
    """Whether a training stage has saved a checkpoint of this step or a later one."""
    steps = [path.parent.name for path in folder.glob("checkpoints/checkpoint-*/trainer_state.json")]
    return any(int(name.removeprefix("checkpoint-")) >= step for name in steps)


# ------------------------------------------------------------------ kill -9


def test_twelve_random_kills(undisturbed, tmp_path):
    """SIGKILL once in each stage: after a random time, in SFT and DPO after a random step."""
    draw, run, survived = random.Random(SEED), tmp_path / "run", 0
    assert len(STAGES) == 12
    for stage in STAGES:
        process, folder = start(command(run)), run / stage
        wait_until((folder / "plan.json").exists, process, stage)
        if stage.endswith(("sft", "dpo")):
            steps = json.loads((undisturbed / stage / "manifest.json").read_text())["counts"]["steps"]
            step = draw.randrange(1, steps)
            wait_until(partial(has_saved, folder, step), process, f"{stage}: step {step}")
            time.sleep(draw.uniform(0, 0.2))
        else:
            time.sleep(draw.uniform(0, 0.7 * seconds_of(undisturbed, stage)))
        process.kill()
        process.communicate()
        survived += process.returncode == -signal.SIGKILL
    assert survived == 12
    finish(command(run))
    check_equal(run, undisturbed)


# ------------------------------------------------------------------ Ctrl-C and SIGTERM


def test_ctrl_c_in_the_first_stage_and_sigterm_in_dpo(undisturbed, tmp_path):
    run = tmp_path / "run"
    for number, reached in (
        (signal.SIGINT, "round-1/candidates/plan.json"),
        (signal.SIGTERM, "round-2/dpo/checkpoints/checkpoint-3/trainer_state.json"),
    ):
        process = start(command(run))
        wait_until((run / reached).exists, process, reached)
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 128 + number
        assert output.splitlines()[-1] == "stopped; rerun the command to resume." and "Traceback" not in output
    assert "resuming from " in finish(command(run))
    check_equal(run, undisturbed)


def test_sigterm_to_two_processes(undisturbed, tmp_path):
    """The launcher forwards the signal; one process resumes the run of two."""
    run = tmp_path / "run"
    process = start(command(run, "--run.until", "pairs", processes=2))
    wait_until((run / "round-1/scores/part-0.jsonl").exists, process, "scores")
    ranks = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode and output.count("stopped; rerun the command to resume.") == 1
    assert not any(rank.is_running() for rank in ranks)
    finish(command(run, "--run.until", "pairs"))
    for stage in RECORDS[:4]:
        assert sha256(run / stage / "records.jsonl") == sha256(undisturbed / stage / "records.jsonl"), stage


# ------------------------------------------------------------------ a full disk


def used_kib(folder: Path) -> int:
    return sum(-(-path.stat().st_size // 4096) * 4 for path in folder.rglob("*"))


@pytest.fixture
def small_disk(tmp_path) -> Iterator[tuple[Path, Callable[[int], dict]]]:
    """A folder, and a function that limits its free space to a number of KiB and returns options for `subprocess`. The
    limit is that of a tmpfs or, without the right to mount one, of each file."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = not subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], capture_output=True).returncode

    def leave(kib: int) -> dict:
        if mounted:
            subprocess.run(["mount", "-o", f"remount,size={used_kib(folder) + kib}k", folder], check=True)
            return {}
        limit = (min(kib, 800) * 1024, resource.RLIM_INFINITY)  # smaller than an adapter
        return {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit)}

    yield folder, leave
    if mounted:
        subprocess.run(["umount", folder], check=True)


def test_a_full_disk(undisturbed, small_disk):
    """The disk has space for a part of a run, and for more in each attempt."""
    disk, leave = small_disk
    run, draw = disk / "run", random.Random(SEED)
    for low, high in ((8, 100), (1500, 1700), (8, 800), (1000, 2000), (3000, 4000)):
        process = start(command(run), **leave(draw.randrange(low, high)))
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 2 and "Traceback" not in output, output[-5000:]
        assert output.splitlines()[-1].startswith("error: ")
    leave(1 << 20)
    finish(command(run))
    check_equal(run, undisturbed)


# ------------------------------------------------------------------ errors, and what is counted


def calls_of(path: Path) -> Counter:
    """(stage, number of its finished records) -> number of model calls."""
    return Counter(path.read_text().splitlines())


def test_an_error_in_one_record_repeats_the_batch_in_flight_alone(undisturbed, tmp_path):
    """In two stages with records, in SFT, DPO and the evaluation; a partial line of a record is left behind, too."""
    run, calls, draw = tmp_path / "run", tmp_path / "calls", random.Random(SEED)
    expected = calls_of(undisturbed.parent / "calls")
    environment, repeated, outputs = os.environ | {"CALLS": str(calls), "RUN": str(run)}, Counter(), ""
    for stage in ("round-1/candidates", "round-1/scores", "round-1/sft", "round-2/dpo", "evaluation"):
        batches = [key for key in expected if key.startswith(f"{stage} ")]
        before = sum(expected[key] for key in batches[:-1])
        number = draw.randrange(1, expected[batches[-1]] + 1)  # a call in its last batch
        process = start(command(run), env=environment | {"FAIL": f"{stage} {before + number}"})
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 1 and "ArithmeticError: the planted fault" in output, output[-5000:]
        part = run / stage / "part-0.jsonl"
        if part.exists():
            part.write_text(part.read_text() + '{"id": "half a rec')
        repeated[batches[-1]], outputs = number, outputs + output
    finish(command(run), env=environment)
    assert outputs.count("round-1/scores: resuming after 8 finished records") == 1
    check_equal(run, undisturbed)
    again = calls_of(calls)
    for key in expected:
        most = repeated[key] if key.split()[0] in RECORDS else 3 * expected[key]
        assert expected[key] <= again[key] <= expected[key] + most, key


def test_a_second_run_names_the_process_of_the_first(undisturbed):
    """SIGSTOP pauses the first run; the second uses the same folder."""
    process = start(command(undisturbed))
    lock = undisturbed / ".lock-holder"
    name = f"process {process.pid} on {socket.gethostname()}"
    wait_until(lambda: lock.read_text() == name, process, "the lock")
    process.send_signal(signal.SIGSTOP)
    output = finish(command(undisturbed), ok=False)
    process.kill()
    process.communicate()
    assert output.splitlines()[-1] == (
        f"error: another process ({name}) is using {undisturbed}; wait for it to finish, or use another `--run.dir`."
    )
