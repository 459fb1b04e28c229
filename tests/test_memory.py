"""Batches under a real memory limit: halved, and no larger after that; an error if a single item does not fit."""

import subprocess
import sys

import pytest

from core.batching import run_batched
from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits the memory as Linux does")
COMMON = f"""
import resource, torch
from core.errors import InputError
from core.language_model import LanguageModel, load_language_model
from core.records import GenerationInput
from scoring.generator import Generator
torch.set_num_threads(1)
lm = load_language_model({str(ROOT / "configs/tiny-model")!r}, device="cpu")
def reading(i, words):
    return GenerationInput((), f"Where was number {{i}} born?", (f"Number {{i}} was born in Ankara. " * words,))
def limit(megabytes):
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + megabytes * 2**20,) * 2)
"""
HALVES = """
readings = [reading(i, 20) for i in range(64)]
alone = Generator(lm, 8, 512).answers(readings)
limit(8)
together = Generator(lm, 8, 1 << 20).answers(readings)
limited = lm.batch_limit
assert limited < 1 << 20
Generator(lm, 8, 1 << 20).answers(readings[:16])
assert lm.batch_limit == limited
assert [answer.answer for answer in together] == [answer.answer for answer in alone]
assert all(abs(a - b) < 1e-4 for x, y in zip(alone, together) for a, b in zip(x.stats.hd, y.stats.hd))
"""
# Each layer of a wide model needs 50 MB for a prompt of 1500 tokens, and 1 MB for a short one.
ALONE = """
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(
    vocab_size=len(lm.tokenizer), hidden_size=64, intermediate_size=8192, num_hidden_layers=1, num_attention_heads=2
)
wide = Generator(LanguageModel("wide", LlamaForCausalLM(config).eval(), lm.tokenizer), 8, 1 << 20)
wide.answers([reading(1, 1)])
limit(16)
try:
    wide.answers([reading(i, 150) for i in range(2)])
except InputError as error:
    print(error)
"""


def run(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", COMMON + code], cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_a_batch_that_does_not_fit_is_done_in_halves():
    done = run(HALVES)
    assert done.returncode == 0, done.stderr
    assert "does not fit in memory; from now on, batches are limited to" in done.stderr


def test_later_batches_are_as_small_as_the_one_that_fits():
    sequences, sizes, processed = [[i] * 10 for i in range(40)], [], []

    def process(batch):
        members = [i for group in batch for i in group.members]
        sizes.append(len(members))
        if len(members) > 6:
            raise MemoryError
        processed.extend(members)

    assert run_batched(sequences, [9] * 40, [10] * 40, 160, process) == 40
    assert sizes == [16, 8] + [4] * 10 and sorted(processed) == list(range(40))
    assert run_batched(sequences, [9] * 40, [10] * 40, 60, process) == 60


def test_the_members_of_one_prefix_are_halved():
    sequences, sizes = [[7] * 30 + [i] for i in range(8)], []

    def process(batch):
        sizes.append([(group.prefix_length, len(group.members)) for group in batch])
        if len(sizes) == 1:
            raise MemoryError

    assert run_batched(sequences, [30] * 8, [31] * 8, 1000, process) == 4 * 31
    assert sizes == [[(30, 8)], [(30, 4)], [(30, 4)]]


def test_an_item_that_does_not_fit_is_named():
    done = run(ALONE)
    assert done.returncode == 0, done.stderr
    assert "a single prompt of " in done.stdout and "does not fit in memory" in done.stdout
    assert "`retrieval.k`" in done.stdout
