"""What a run of many turns costs besides its models: speed with 1 and 2 processes, memory, and the stages' own work.

    python -m tests.benchmarks.scale
    python -m tests.benchmarks.scale --case memory --turns 2000 20000

speed: turns/s of the stages of the quickstart, with 1 and with 2 processes. memory: peak memory of each stage, in a
process of its own, at two numbers of turns; workers return records of a usual size at once. overhead: the same with
8 processes whose workers sleep as long as a 7B model works on a GPU; the share of the time that is not sleep: files,
plans, barriers. Where processes wait for few cores, its last column has the share by the CPU seconds of rank 0, which
does most: that of a machine with a core for each process.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from core.tables import markdown_table

ROOT = Path(__file__).resolve().parents[2]
STAGES = ("candidates", "rankings", "scores", "pairs")
BATCH_SECONDS = {"candidates": 1.5, "rankings": 1.0, "scores": 8.0}  # 7B on an H100; 1,000 queries/s
CANDIDATES, LISTS, DOCUMENTS, TOKENS = 16, 8, 5, 32  # of a turn; of a list; of an answer
TURNS, WORDS = 8, 50  # of a conversation, of a message


def words(count: int, start: int) -> str:
    return " ".join(f"word{number}" for number in range(start, start + count))


def write_data(folder: Path, turns: int) -> None:
    """Turns with conversations of a usual length, and a collection."""
    with (folder / "turns.jsonl").open("w") as handle:
        for i in range(turns):
            first, place = i - i % TURNS, i % TURNS
            history = [
                {"role": role, "content": words(WORDS, 2 * each + shift)}
                for each in range(first, first + place)
                for shift, role in enumerate(("user", "assistant"))
            ]
            handle.write(json.dumps({"id": f"c{first}_{place}", "history": history, "question": words(10, i)}) + "\n")
    (folder / "corpus.jsonl").write_text(json.dumps({"id": "d0", "text": words(WORDS, 0)}) + "\n")


def with_candidates(turn: Any) -> Any:
    """The record of a turn with candidates."""
    from core.records import Candidate, TurnRecord

    texts = [words(12, i) for i in range(CANDIDATES)]
    return TurnRecord(turn.id, candidates=tuple(Candidate(text, text, -12.345678901234, 20) for text in texts))


def with_documents(record: Any) -> Any:
    from core.records import Hit

    lists = [tuple(Hit(f"document{i}{j}", 12.345678901234 - j) for j in range(DOCUMENTS)) for i in range(LISTS)]
    candidates = [replace(each, documents=lists[i % LISTS]) for i, each in enumerate(record.candidates)]
    return replace(record, candidates=tuple(candidates))


def with_scores(record: Any) -> Any:
    from core.records import Score, TokenStats

    stats = TokenStats(tuple(words(TOKENS, 0).split()), *[tuple(i + 0.123456789012345 for i in range(TOKENS))] * 4)
    lists = {str(i): Score(float(i), words(TOKENS, i), key=(0, 1, 2), stats=stats) for i in range(LISTS)}
    ids = [str(i % LISTS) for i in range(CANDIDATES)]
    pairs = zip(record.candidates, ids, strict=True)
    candidates = tuple(replace(each, list_id=list_id, score=lists[list_id].value) for each, list_id in pairs)
    return replace(record, candidates=candidates, lists=lists)


def make_stage(folder: Path, name: str, sleeps: bool) -> None:
    """Complete a stage of the run in a folder, with workers that return prepared records. Prints a line of JSON."""
    import retrieval.rankings as rankings
    import rewriter.candidates as candidates
    import scoring.scores as scores
    from core.cli import read_settings
    from core.data_sources import data_sources
    from core.distributed import process, wait_for_all
    from core.progress import peak_memory_mb
    from core.records import TurnRecord
    from core.stage_runner import run_stage
    from core.stages import Stage, load_stage
    from train.pairs import make_pairs
    from train.run import Run

    files = ["--data.train", str(folder / "turns.jsonl"), "--data.corpus", str(folder / "corpus.jsonl")]
    settings = read_settings("", [*files, "--run.dir", str(folder / "run"), "--rewriter.model", "x"])
    wait_for_all()
    start, cpu_start, slept, cpu_of_worker = time.monotonic(), time.process_time(), 0.0, 0.0
    run = Run(settings, data_sources(settings.data, folder))
    turns = run.train_turns
    if name == "pairs":
        make_pairs(run, name, load_stage(run.path, "scores", TurnRecord))
    else:
        batch_size, complete = {
            "candidates": (candidates.BATCH_SIZE, with_candidates),
            "rankings": (rankings.BATCH_SIZE, with_documents),
            "scores": (scores.BATCH_SIZE, with_scores),
        }[name]
        place = STAGES.index(name)
        items = load_stage(run.path, STAGES[place - 1], TurnRecord) if place else turns

        def worker(batch: list[Any]) -> list[Any]:
            nonlocal slept, cpu_of_worker
            before, cpu_before = time.monotonic(), time.process_time()
            records = [complete(item) for item in batch]
            cpu_of_worker += time.process_time() - cpu_before
            if sleeps:
                time.sleep(max(0.0, before + BATCH_SECONDS[name] - time.monotonic()))
            slept += time.monotonic() - before
            return records

        def summarize(records: Iterable[Any]) -> dict[str, Any]:
            return {"total": sum(1 for _ in records)}

        run_stage(Stage(run.path, name, {}, {"turns": len(turns)}, TurnRecord), items, batch_size,
                  lambda: worker, summarize)  # fmt: skip
    if process()[0] == 0:
        cpu = time.process_time() - cpu_start - cpu_of_worker
        seconds, peak = time.monotonic() - start, peak_memory_mb()
        print(json.dumps({"seconds": seconds, "model": slept, "cpu": cpu, "peak_mb": peak}), flush=True)


def launch(processes: int, *words: str) -> str:
    """Run a Python command of this repository in some processes, and return its output."""
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node", str(processes)] if processes > 1 else []
    command = [sys.executable, *torchrun, *words]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def make_stages(folder: Path, names: Sequence[str], processes: int, *flags: str) -> list[dict[str, float]]:
    """Complete stages in new processes; returns what rank 0 prints of each."""
    output = launch(processes, "-m", "tests.benchmarks.scale", "--stages", *names, "--folder", str(folder), *flags)
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def in_folder(work: Callable[[Path], Any], turns: int) -> Any:
    with tempfile.TemporaryDirectory() as name:
        write_data(Path(name), turns)
        return work(Path(name))


def speed(turns: int) -> str:
    rates: dict[str, list[str]] = {}
    for processes in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            flags = ["--run.dir", folder, "--run.limit", str(turns), "--train.rounds", "1"]
            launch(processes, "train/dpo.py", "--config", "configs/quickstart.yaml", *flags)
            for path in sorted(Path(folder).rglob("manifest.json"), key=lambda path: path.stat().st_mtime):
                manifest = json.loads(path.read_text())
                rates.setdefault(str(path.parent.relative_to(folder)), []).append(f"{turns / manifest['seconds']:.1f}")
    rows = [[name, *values] for name, values in rates.items()]
    return markdown_table(["stage", "turns/s, 1 process", "turns/s, 2 processes"], rows)


def memory(sizes: list[int]) -> str:
    peaks = {n: in_folder(lambda f: [make_stages(f, [name], 1)[0]["peak_mb"] for name in STAGES], n) for n in sizes}
    growth = [(last - first) * 1e3 / (sizes[-1] - sizes[0]) for first, last in zip(*peaks.values(), strict=True)]
    rows = [[name, *(f"{peaks[n][i]:.0f} MB" for n in sizes), f"{growth[i]:.1f} kB"] for i, name in enumerate(STAGES)]
    return markdown_table(["stage", *(f"{n:,} turns" for n in sizes), "for each turn more"], rows)


def overhead(ranks: int, turns: int) -> str:
    figures = in_folder(lambda f: make_stages(f, STAGES, ranks, "--sleep"), turns)
    figures.append({key: sum(each[key] for each in figures) for key in ("seconds", "model", "cpu")})
    rows = []
    for name, each in zip([*STAGES, "total"], figures, strict=True):
        wall, model, cpu = each["seconds"], each["model"], each["cpu"]
        shares = 1 - model / wall, cpu / (cpu + model)
        rows.append([name, *(f"{x:.1f}" for x in (wall, model, cpu)), *(f"{share:.1%}" for share in shares)])
    header = ["stage", "seconds", "in the model", "CPU of rank 0", "own work", "with a core a rank"]
    return markdown_table(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=("speed", "memory", "overhead"), help="only this one")
    parser.add_argument("--turns", type=int, nargs="+", help="of the case: 300 | 2000 20000 | 2048")
    parser.add_argument("--ranks", type=int, default=8, help="processes of `overhead` (default 8)")
    parser.add_argument("--stages", choices=STAGES, nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--sleep", action="store_true", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.stages:
        for name in flags.stages:
            make_stage(flags.folder, name, flags.sleep)
        return
    if flags.case in (None, "speed"):
        print(speed((flags.turns or [300])[0]))
    if flags.case in (None, "memory"):
        print(memory(flags.turns or [2000, 20000]))
    if flags.case in (None, "overhead"):
        print(overhead(flags.ranks, (flags.turns or [2048])[0]))


if __name__ == "__main__":
    main()
