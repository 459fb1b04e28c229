"""How fast scoring is: the batched passes beside the plain way, on the same candidate lists, in one run.

    python -m tests.benchmarks.scoring --json scoring.json

(a) the quickstart's model over quickstart candidates; (b) a random Qwen2-shaped model of 30M parameters with 150,000
vocabulary entries, 5 documents of 100 words, 8 candidates a turn; with a GPU, (c) one of Qwen2.5-1.5B's shape in bf16.
Time: in one process ours, the plain way and ours over twice the turns run in turns, several rounds of it, so that a
machine whose speed moves is the same for all; every figure is the median of the rounds, of the ratio too. Memory: each
way in a process of its own, above the loaded model after a pass over one short question, of all processes together.
The floor is the time that the multiplications of the needed forward passes take at the machine's matrix rate, measured
before and after ours in each round.
"""

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
TURNS = {"a": 256, "b": 8, "c": 512}
NEW_TOKENS = {"a": 16, "b": 32, "c": 32}
BATCH_TOKENS = {"a": 32768, "b": 9600, "c": 131072}  # (a) as configs/quickstart.yaml
ROUNDS = {"a": 8, "b": 4, "c": 2}
PLAIN_ITEMS = {"a": 200, "b": 12, "c": 32}  # of each round, half before ours and half after it
PLAIN_PEAK = {"a": 128, "b": 8, "c": 8}  # items over which the plain way's memory is looked at


def quickstart_jobs(turns: int, folder: Path) -> list[list]:
    """Readings of the candidates of quickstart turns: a list per turn, one reading per candidate."""
    from core.artifacts import completed
    from core.inputs import data_file
    from core.read_settings import read_settings
    from retrieval.collection import collection_of
    from retrieval.rankings import make_rankings
    from rewriter.candidates import make_candidates
    from rewriter.conversations import read_turns
    from scoring.generator import Reading
    from train.tiny_world import make_quickstart_data

    config = str(ROOT / "configs/quickstart.yaml")
    settings = read_settings("", ["--config", config, "--run.dir", str(folder), "--run.limit", str(turns)])
    make_quickstart_data(folder / "data")
    make_candidates(settings)
    make_rankings(settings)
    collection = collection_of(settings)
    known = {turn.id: turn for turn in read_turns(data_file(settings, "train"), turns)}
    return [
        [
            Reading.of(
                known[r["id"]].history, known[r["id"]].question, collection.contents([doc for doc, _ in ranking])
            )
            for ranking in r["rankings"]
        ]
        for r in completed(folder / "rankings").records()
    ]


def long_jobs(turns: int) -> list[list]:
    """8 candidates a turn, 5 documents of 100 words each out of the turn's best 8."""
    from scoring.generator import Reading
    from train.tiny_world import World, conversation

    rng = random.Random(0)
    world = World(rng, "lm", 60)
    words = " ".join(passage.text for entity in world.entities for passage in world.passages(entity)).split()
    made = []
    for _ in range(turns):
        history, asked = list(conversation(world, 4))[-1]
        best = [" ".join(words[start : start + 100]) for start in rng.sample(range(len(words) - 100), 8)]
        made.append([Reading.of(history, asked.question, rng.sample(best, 5)) for _ in range(8)])
    return made


def model_of(case: str):
    """The generator of a case."""
    import torch
    from core.parts import fit_to_cpu
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from core.language_model import LanguageModel, load_language_model

    tiny = load_language_model(str(ROOT / "configs/tiny-model"))
    if case == "a":
        return tiny
    shape = {
        "b": dict(vocab_size=150_000, hidden_size=160, intermediate_size=640, num_hidden_layers=12,
                  num_attention_heads=5, num_key_value_heads=5),
        "c": dict(vocab_size=151_936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28,
                  num_attention_heads=12, num_key_value_heads=2),
    }[case]  # fmt: skip
    torch.manual_seed(0)
    config = Qwen2Config(**shape, tie_word_embeddings=True, eos_token_id=1, pad_token_id=0, bos_token_id=None)
    model = Qwen2ForCausalLM(config)
    if case == "c":
        model = model.to("cuda", torch.bfloat16)
    fit_to_cpu(model)
    return LanguageModel(case, model.eval(), tiny.tokenizer)


def matrix_seconds(device: str) -> float:
    """Seconds of a floating-point operation in large matrix products."""
    import torch

    size, dtype = (2048, torch.float32) if device == "cpu" else (8192, torch.bfloat16)
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    a @ b
    if device != "cpu":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(8):
        a @ b
    if device != "cpu":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / (8 * 2 * size**3)


def needed_operations(lm, jobs: list[list], made: list, max_new_tokens: int) -> tuple[float, int]:
    """Operations and tokens of the forward passes that are needed: each distinct (question, documents) prompt and its
    answer once, each distinct (question, answer) without documents on one pass over the bare prompt. What prompts have
    in common at their beginnings counts in each, though it is read once."""
    from scoring.generator import Reading, prompt_of

    readings = [reading for job in jobs for reading in job]
    answers = {reading: one.stats.tokens for reading, one in zip(readings, made, strict=True)}
    config = lm.model.config
    width, layers, heads = config.hidden_size, config.num_hidden_layers, config.num_attention_heads
    kv = config.num_key_value_heads * (width // heads)
    layer = 2 * (2 * width * width + 2 * width * kv + 3 * width * config.intermediate_size)
    head = 2 * width * config.vocab_size
    total, tokens = 0.0, 0

    def forward(start: int, count: int) -> float:
        attention = 4 * width * sum(range(start + 1, start + count + 1))
        return layers * (count * layer + attention)

    bare: dict = {}
    for reading, answer in answers.items():
        prompt, length = len(prompt_of(lm, reading, max_new_tokens)[0]), len(answer)
        total += forward(0, prompt + length) + (length + 1) * head
        tokens += prompt + length
        bare.setdefault(Reading(reading.history, reading.question, ()), set()).add(answer)
    for reading, replies in bare.items():
        prompt = len(prompt_of(lm, reading, max_new_tokens)[0])
        total += forward(0, prompt) + sum(forward(prompt, len(r) - 1) + len(r) * head for r in replies if r)
        tokens += prompt + sum(max(0, len(r) - 1) for r in replies)
    return total, tokens


def memory_mb() -> float:
    """Memory of this process and those it has begun; what they share is counted once. 0 where one began or ended
    meanwhile, as something would be counted twice."""
    me, found = psutil.Process(), 0
    processes = [me, *me.children()]
    for process in processes:
        with suppress(OSError):
            rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
            found += int(re.search(r"^Pss: *(\d+) kB", rollup, re.MULTILINE)[1])
    still = processes == [me, *me.children()] and all(p.status() != psutil.STATUS_ZOMBIE for p in processes)
    return found * 1024 / 1e6 if still else 0.0


class PeakMemory:
    """The largest `memory_mb` while it is open, looked at every 20 ms."""

    def __enter__(self) -> "PeakMemory":
        self.mb, self._closed = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._closed.wait(0.02):
            with suppress(psutil.Error):
                self.mb = max(self.mb, memory_mb())

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()


def in_chunks(jobs: list[list], make) -> list:
    """What `make` makes of the readings of some turns at a time, as the stage `scores` does it."""
    from core.workers import cores, map_on_cores

    from core.stages import shared_out
    from scoring.scores import BATCH

    chunks = [[r for job in some for r in job] for some in shared_out(jobs, BATCH, cores())]
    return [one for made in map_on_cores(make, chunks, cores()) for one in made]


def fast(lm, case: str, jobs: list[list]) -> list:
    """The product's scoring."""
    from scoring.generator import answer_all

    return in_chunks(jobs, lambda some: answer_all(lm, some, NEW_TOKENS[case], BATCH_TOKENS[case]))


def fast_udcg(lm, case: str, jobs: list[list]) -> list:
    """The product's UDCG."""
    from core.settings import ScoringSettings
    from scoring.rewards import Item, Judge

    judge = Judge(lm, ScoringSettings(), NEW_TOKENS[case], BATCH_TOKENS[case])
    return in_chunks(jobs, lambda some: judge.scores([Item(r, (True,) * len(r.documents)) for r in some], ["udcg"]))


def plain(lm, case: str, readings: list) -> list:
    """One item at a time, all logits kept."""
    from tests.oracle import plain_scores

    return [plain_scores(lm, reading, NEW_TOKENS[case]) for reading in readings]


def plain_udcg(lm, case: str, readings: list) -> list:
    """One passage at a time, all logits kept, as the published code does it."""
    from core.chat import reply_ids
    from tests.oracle import plain_no_res

    refusal = reply_ids(lm, "NO-RESPONSE")[:1]
    return [plain_no_res(lm, reading, refusal, "first_token") for reading in readings]


WAYS = {"key_entropy": (fast, plain), "udcg": (fast_udcg, plain_udcg)}


def prepare(case: str, turns: int, file: Path) -> None:
    """Write the jobs of a case."""
    jobs = quickstart_jobs(turns, file.parent / str(turns)) if case == "a" else long_jobs(turns)
    file.write_text(json.dumps([[astuple(reading) for reading in job] for job in jobs]))


def prepared(file: Path) -> list[list]:
    """What `prepare` has written."""
    from scoring.generator import Reading

    return [
        [Reading(tuple(map(tuple, history)), question, tuple(documents)) for history, question, documents in job]
        for job in json.loads(file.read_text())
    ]


def some_of(jobs: list[list], count: int) -> list:
    """Readings for the plain way: so many out of all."""
    readings = [reading for job in jobs for reading in job]
    return random.Random(0).sample(readings, min(count, len(readings)))


def timed(work, *given) -> tuple[float, list]:
    """Seconds, and what was made."""
    start = time.perf_counter()
    made = work(*given)
    return time.perf_counter() - start, made


def measure_time(case: str, reward: str, files: list[Path]) -> dict:
    """Ours, over twice the turns too, and the plain way, in rounds; medians of the figures of each."""
    jobs, twice = map(prepared, files)
    lm, (ours, plainly) = model_of(case), WAYS[reward]
    items, all_items = (sum(map(len, some)) for some in (jobs, twice))
    few = some_of(jobs, PLAIN_ITEMS[case])
    middle = len(few) // 2
    ours(lm, case, jobs[:2])  # what the libraries need at their first use
    plainly(lm, case, few[:2])
    rounds = []
    for number in range(ROUNDS[case]):
        operation = matrix_seconds(lm.device.type)
        before, _ = timed(plainly, lm, case, few[:middle])
        seconds, made = timed(ours, lm, case, jobs)
        operation = (operation + matrix_seconds(lm.device.type)) / 2
        after, _ = timed(plainly, lm, case, few[middle:])
        found = {"items_per_s": items / seconds, "plain_items_per_s": len(few) / (before + after)}
        found = {"ratio": found["items_per_s"] / found["plain_items_per_s"]} | found
        if reward == "key_entropy":
            longer, _ = timed(ours, lm, case, twice)
            if not number:
                operations, tokens = needed_operations(lm, jobs, made, NEW_TOKENS[case])
            found["tokens_per_s"] = tokens / seconds
            found["share_of_floor"] = operations * operation / seconds
            found["floor_seconds"] = operations * operation
            found["matrix_gflops"] = 1e-9 / operation
            found["time_of_twice_the_turns"] = longer / seconds / (all_items / items) * 2
        print(json.dumps(found), file=sys.stderr, flush=True)
        rounds.append(found)
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}


def measure_memory(case: str, way: str, file: Path) -> float:
    """Most memory of a way in this process and those it begins, above what there is before, in MB. The plain way has
    the longest prompts, which decide."""
    import torch

    import scoring.scores  # noqa: F401  (memory of libraries is none of the passes')
    from scoring.generator import Reading, prompt_of

    jobs, lm, (ours, plainly) = prepared(file), model_of(case), WAYS["key_entropy"]
    short = Reading((), "Who?", ())
    ours(lm, case, [[short]])  # in this process: what the libraries need at their first use
    plainly(lm, case, [short])
    work, given = ours, jobs
    if way == "plain":
        readings = {reading for job in jobs for reading in job}
        longest = sorted(readings, key=lambda reading: len(prompt_of(lm, reading, 0)[0]))
        work, given = plainly, longest[-PLAIN_PEAK[case] :]
    if lm.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work(lm, case, given)
        return (torch.cuda.max_memory_allocated() - before) / 1e6
    before = memory_mb()
    with PeakMemory() as peak:
        work(lm, case, given)
    return peak.mb - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--turns", type=int, help="turns of each case")
    parser.add_argument("--case", choices=["a", "b", "c", "udcg"], help="this case alone")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)  # one measurement, in a process of its own
    parser.add_argument("--files", type=Path, nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        print(json.dumps(PARTS[arguments.part](arguments)))
        return
    with tempfile.TemporaryDirectory() as folder:
        made = compare(arguments, Path(folder))
    for case, figures in made.items():
        print(f"{case}: " + ", ".join(f"{name} {value:.4g}" for name, value in figures.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(made, indent=2) + "\n")


PARTS = {
    "prepare": lambda given: prepare(given.case, given.turns, *given.files),
    "key_entropy": lambda given: measure_time(given.case, "key_entropy", given.files),
    "udcg": lambda given: measure_time(given.case, "udcg", given.files),
    "memory": lambda given: measure_memory(given.case, "ours", *given.files),
    "plain_memory": lambda given: measure_memory(given.case, "plain", *given.files),
}


def compare(arguments: argparse.Namespace, folder: Path) -> dict:
    """The wanted cases."""
    import torch

    def part(name: str, case: str, *turns: int):
        files = [folder / f"{case}-{number}.json" for number in turns]
        words = [sys.executable, "-m", "tests.benchmarks.scoring", "--part", name, "--case", case]
        if name == "prepare":
            words += ["--turns", str(turns[0])]
        done = subprocess.run([*words, "--files", *files], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        return json.loads(done.stdout.splitlines()[-1])

    cases = [arguments.case] if arguments.case else ["a", "udcg", "b", *(["c"] if torch.cuda.is_available() else [])]
    made: dict = {}
    for wanted in cases:
        case = "a" if wanted == "udcg" else wanted
        turns = arguments.turns or TURNS[case]
        for number in (turns, 2 * turns):
            if not (folder / f"{case}-{number}.json").exists():
                part("prepare", case, number)
        if wanted == "udcg":
            made[wanted] = part("udcg", case, turns, 2 * turns)
            continue
        made[case] = part("key_entropy", case, turns, 2 * turns) | {
            "peak_mb": part("memory", case, turns),
            "peak_mb_of_twice_the_turns": part("memory", case, 2 * turns),
            "plain_peak_mb": part("plain_memory", case, turns),
        }
    return made


if __name__ == "__main__":
    main()
