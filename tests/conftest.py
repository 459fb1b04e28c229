"""Helpers and fixtures: commands and settings, small random models, and real data if it exists beside the project."""

import io
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from core.cli import read_settings, run_command
from core.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"
# A small version of the quickstart.
QUICK = [
    "--run.limit", "24", "--rewriter.n", "4", "--rewriter.max_new_tokens", "24", "--generator.max_new_tokens", "8",
    "--sft.num_train_epochs", "3", "--dpo.num_train_epochs", "2", "--dpo.save_steps", "2",
    "--evaluation.resamples", "50", "--run.threads", "1",
]  # fmt: skip


def finish(words: list[str], ok: bool = True, env: dict[str, str] | None = None) -> str:
    """Run a command in the project's root, and return its output. It must succeed or, with `ok=False`, fail without a
    traceback."""
    words = [str(word) for word in words]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=400, env=env)
    output = done.stdout + done.stderr
    assert (done.returncode == 0) == ok and (ok or "Traceback" not in output), output[-5000:]
    return output


def start(words: list[str], **options) -> subprocess.Popen:
    """Start a command in the project's root with options of `Popen`."""
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def wait_until(condition: Callable[[], bool], process: subprocess.Popen, what: str) -> None:
    """Wait until the condition holds; fails if the process ends first."""
    deadline = time.monotonic() + 300
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            pytest.fail(f"{what} never came: {process.communicate()[0][-3000:]}")
        time.sleep(0.002)


def call(main: Callable[[list[str]], None], *words, ok: bool = True) -> str:
    """Run a command's `main` in this process, and return its output. It must succeed or, with `ok=False`, fail with a
    message."""
    output, status = io.StringIO(), 0
    with redirect_stdout(output), redirect_stderr(output):
        try:
            run_command(lambda: main([str(word) for word in words]))
        except SystemExit as end:
            status = end.code or 0
    assert (status == 0) == ok, output.getvalue()[-5000:]
    return output.getvalue()


def settings_of(*flags) -> Settings:
    """The settings of a command line; the run folder defaults to `x`."""
    return read_settings("", ["--run.dir", "x", *map(str, flags)])


def lines(folder: Path) -> list[dict]:
    """The records of a complete stage."""
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


def write_lines(path: Path, records: Iterable[dict]) -> str:
    """Write records as JSON lines, and return the name of the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


@pytest.fixture(scope="session", autouse=True)
def users_cache(tmp_path_factory):
    """A separate cache of collections and indexes for the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Reset the number of threads, which a run in this process may have raised: several test processes on two cores
    are much faster with one thread each."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


def pytest_collection_modifyitems(items) -> None:
    """Run the slowest files first, so that parallel test processes finish at about the same time."""
    longest = (
        "test_faults", "test_processes", "test_run", "test_compare", "test_own_data_config", "test_tiny_model",
        "test_families", "test_evaluation", "test_training", "test_utility",
    )  # fmt: skip
    items.sort(key=lambda item: longest.index(item.path.stem) if item.path.stem in longest else len(longest))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data for tests, which is not part of the project."""
    if not SHARED.is_dir():
        pytest.skip(f"real test data are not at {SHARED}")
    return SHARED


@cache
def small_tokenizer():
    """The tiny world's tokenizer, with 600 tokens."""
    from train.tiny.tokenizer import make_tokenizer

    return make_tokenizer(0, size=600, episodes=60)


@pytest.fixture(scope="session")
def random_llama(tmp_path_factory) -> Path:
    """A random Llama with the tiny world's tokenizer and chat template, saved as safetensors."""
    from train.tiny.model import new_model

    folder = tmp_path_factory.mktemp("llama")
    small_tokenizer().save_pretrained(folder)
    new_model(small_tokenizer(), seed=1, width=64, layers=2).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def lm(random_llama):
    from core.language_model import load_language_model

    return load_language_model(str(random_llama))


@pytest.fixture(scope="session")
def adapters(random_llama, tmp_path_factory) -> dict[str, str]:
    """Folders of two adapters of the random Llama, which change its logits."""
    import torch
    from peft import LoraConfig, get_peft_model

    from core.language_model import load_language_model

    folders = {}
    for seed, name in enumerate(("first", "second")):
        torch.manual_seed(seed)
        config = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
        folders[name] = str(tmp_path_factory.mktemp(name))
        get_peft_model(load_language_model(str(random_llama)).model, config).save_pretrained(folders[name])
    return folders


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory) -> Path:
    """A small run of train/dpo.py on the tiny world, with markup in a question and in some documents."""
    from train.dpo import main
    from train.tiny.world import make_quickstart_data

    folder = tmp_path_factory.mktemp("finished")
    make_quickstart_data(folder / "data")
    for name in ("train", "test", "corpus"):
        path = folder / "data" / f"{name}.jsonl"
        records = [json.loads(line) for line in path.read_text().splitlines()]
        if name == "corpus":
            for record in records[::5]:
                record["text"] += " <script>document.title = 'hacked'</script>"
        if name == "test":
            records[0]["question"] += " <img src=x onerror=alert(1)>"
        write_lines(path, records)
    files = [f"--data.{name}={folder / 'data' / name}.jsonl" for name in ("train", "test", "corpus")]
    config = ["--config", ROOT / "configs/quickstart.yaml", "--rewriter.model", ROOT / "configs/tiny-model"]
    trackers = "[tensorboard]" if find_spec("tensorboard") else "[]"  # installed by `make test-all`
    more = ["--data.format", "records", "--train.report_to", trackers]
    call(main, *config, *more, *files, "--run.dir", folder / "run", *QUICK)
    return folder / "run"
