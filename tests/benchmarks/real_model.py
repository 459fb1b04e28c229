"""Case `smollm2` of the benchmark: a real chat model on real conversations, compared with the plain baseline.

    python -m tests.benchmarks.scoring --model models/SmolLM2-135M-Instruct.Q4_1.gguf --data data/mtrag_clapnq

`--data` is a folder with turns.jsonl and corpus.jsonl. The settings are those of configs/smollm2.yaml. All methods run
one after another in one process, with one dtype, on the same turns, after a warm-up on one turn. The floor is the time
that the multiplications of the necessary forward passes take at the machine's matrix rate; the common prefix of a
turn's prompts counts once.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch

from core.batching import group_by_prefix
from core.chat import completion_ids
from core.cli import read_settings
from core.language_model import LanguageModel, load_language_model
from core.records import GenerationInput, Turn
from core.settings import Settings
from retrieval.collection import open_collection
from retrieval.engines import build_engine
from rewriter.conversations import read_turns
from rewriter.prompts import RewritePrompt
from rewriter.sampling import prompts_of, sample_rewrites
from scoring.generator import Generator
from tests.oracle import plain_logged_scores, plain_scores

FIRST_TURN = 3  # whose conversation has some history
SIZES = (512, 1024, 2048)  # sides of the matrices from which the matrix rate is taken


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations per second of the fastest matrix product."""
    best = 0.0
    for size in SIZES:
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        a @ b
        repeats = max(3, int(2e11 / size**3))
        seconds = timed(lambda a=a, b=b, repeats=repeats: [a @ b for _ in range(repeats)], device)[0]
        best = max(best, repeats * 2 * size**3 / seconds)
    return best


def timed(work: Callable[[], Any], device: torch.device) -> tuple[float, Any]:
    """Call a function; return the seconds and the result."""
    start = time.perf_counter()
    result = work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


class PeakMemory:
    """Peak resident memory of this process within the context, in MB above the value at its start."""

    def __enter__(self) -> "PeakMemory":
        self.before = psutil.Process().memory_info().rss
        self.mb, self._closed = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._closed.wait(0.02):
            with suppress(psutil.Error):
                self.mb = max(self.mb, (psutil.Process().memory_info().rss - self.before) / 1e6)

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()


def plain_candidates(lm: LanguageModel, prompts: list[list[int]], settings: Settings) -> None:
    """Sample with `generate` and `num_return_sequences`, all turns in one left-padded batch."""
    options = settings.rewriter
    batch = lm.tokenizer.pad({"input_ids": prompts}, return_tensors="pt", padding_side="left").to(lm.device)
    torch.manual_seed(settings.run.seed)
    lm.model.generate(
        **batch, do_sample=True, temperature=options.temperature, top_p=options.top_p, num_return_sequences=options.n,
        max_new_tokens=options.max_new_tokens, pad_token_id=lm.tokenizer.pad_token_id, eos_token_id=lm.stop_ids,
    )  # fmt: skip


def inputs_of(turns: list[Turn], candidates: list[list[str]], settings: Settings, corpus: Path) -> list:
    """(input, logged reply) of every distinct document list."""
    collection = open_collection(str(corpus))
    retriever = build_engine(settings.retrieval, collection)
    inputs = {}
    for turn, texts in zip(turns, candidates, strict=True):
        for hits in retriever.search(texts, settings.retrieval.k):
            documents = collection.contents([hit.doc for hit in hits])
            inputs[GenerationInput.of(turn.history, turn.question, documents)] = turn.answers[0]
    return list(inputs.items())


def logged_operations(generator: Generator, inputs: list[GenerationInput], replies: list[list[int]]) -> float:
    """Operations for scoring replies: each prompt once, with common prefixes counted once, and logits only at the
    tokens of the replies."""
    tasks = dict.fromkeys(
        (each, tuple(r)) for i, r in zip(inputs, replies, strict=True) for each in (i, i.without_documents)
    )
    by_input = generator.prompts([each for each, _ in tasks], max(map(len, replies)))
    prompts = [by_input[each][0] for each, _ in tasks]
    sequences = [ids + list(reply[:-1]) for ids, (_, reply) in zip(prompts, tasks, strict=True)]
    config = generator.lm.model.config
    width, layers = config.hidden_size, config.num_hidden_layers
    size = width // config.num_attention_heads
    per_layer = 2 * width * (2 * width + 2 * config.num_key_value_heads * size + 3 * config.intermediate_size)
    total = sum(len(reply) for _, reply in tasks) * 2.0 * width * config.vocab_size

    def forward(start: int, end: int) -> float:
        return layers * ((end - start) * per_layer + 2 * width * (end * end - start * start))

    for group in group_by_prefix(sequences, [len(ids) - 1 for ids in prompts]):
        total += forward(0, group.prefix_length)
        total += sum(forward(group.prefix_length, len(sequences[i])) for i in group.members)
    return total


def compare(model: str, data: Path, turns: int, plain_items: int, dtype: str) -> dict[str, float]:
    """Measure the case.

    Args:
        model: folder, Hub id or GGUF file.
        data: folder with turns.jsonl and corpus.jsonl.
        turns: number of turns.
        plain_items: number of document lists that the plain baseline scores.
        dtype: data type of the weights.
    """
    flags = ["--config", "configs/smollm2.yaml", "--rewriter.model", model, "--rewriter.dtype", dtype]
    settings = read_settings("", [*flags, "--generator.dtype", dtype])
    lm, options = load_language_model(model, dtype=dtype), settings.rewriter
    chosen = read_turns(data / "turns.jsonl")[FIRST_TURN : FIRST_TURN + turns]
    prompt = RewritePrompt.of(options, examples=True)
    figures: dict[str, float] = {"matrix_gflops": matrix_rate(lm.device, lm.model.dtype) / 1e9}

    def sample(batch: list[Turn]) -> list:
        return sample_rewrites(lm, batch, options, prompt, settings.run.seed)

    prompts = [ids for ids, _ in prompts_of(lm, chosen, prompt, options.max_new_tokens)]
    sample(chosen[:1])
    with PeakMemory() as memory:
        figures["candidates_s"], sampled = timed(lambda: sample(chosen), lm.device)
    figures["candidates_peak_mb"] = memory.mb
    plain_s, _ = timed(lambda: plain_candidates(lm, prompts, settings), lm.device)
    figures["candidates_ratio"] = plain_s / figures["candidates_s"]

    tasks = inputs_of(
        chosen, [[c.query for c in record.candidates] for record in sampled], settings, data / "corpus.jsonl"
    )
    inputs, generator = [each for each, _ in tasks], Generator.of(lm, settings.generator)
    replies = [completion_ids(lm, reply)[: settings.scoring.reply_tokens] for _, reply in tasks]
    ways = {
        "generated": (lambda n: generator.answers(inputs[:n]), lambda i: plain_scores(generator, inputs[i])),
        "logged": (
            lambda n: generator.logged_answers(list(zip(inputs[:n], map(tuple, replies[:n]), strict=True))),
            lambda i: plain_logged_scores(generator, inputs[i], replies[i]),
        ),
    }
    figures["lists"] = len(inputs)
    sampled_lists = range(0, len(inputs), max(1, len(inputs) // plain_items))
    for name, (ours, plain) in ways.items():
        ours(1)
        with PeakMemory() as memory:
            seconds, _ = timed(lambda ours=ours: ours(len(inputs)), lm.device)
        plain_s, _ = timed(lambda plain=plain: [plain(i) for i in sampled_lists], lm.device)
        figures |= {f"{name}_s": seconds, f"{name}_peak_mb": memory.mb}
        figures[f"{name}_ratio"] = plain_s / len(sampled_lists) * len(inputs) / seconds
    rate = (figures["matrix_gflops"] * 1e9 + matrix_rate(lm.device, lm.model.dtype)) / 2
    floor_s = logged_operations(generator, inputs, replies) / rate
    return figures | {"logged_share_of_floor": floor_s / figures["logged_s"]}
