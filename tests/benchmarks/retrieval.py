"""Measure speed and memory of retrieval: the bm25s engine compared with bare bm25s and rank-bm25.

    python -m tests.benchmarks.retrieval --json retrieval.json

The collection has 1,000,000 generated passages of 60 words. The frequency of the n-th word is proportional to 1 / n,
and the most frequent words are stop words. Queries of 8 words have the same distribution, and run in batches of 1,000
with k = 100 and 2 threads. Reading and indexing run in one process, searching in another. Bare bm25s searches the same
index, loaded into memory, with the same analyzer and returns row numbers; ours returns ids. rank-bm25 is the library's
`BM25Okapi` on 20,000 passages.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
WORDS, QUERY_WORDS, VOCABULARY = 60, 8, 200_000
BATCH, K, THREADS = 1000, 100, 2
SMALL = 20_000
CHUNK = 10_000  # passages written at once


def words_of(rng: np.random.Generator, texts: int, length: int) -> list[str]:
    """Generate texts of a length; the frequency of the n-th word is proportional to 1 / n."""
    from bm25s.stopwords import STOPWORDS_EN

    vocabulary = [*STOPWORDS_EN, *(f"word{number}" for number in range(VOCABULARY - len(STOPWORDS_EN)))]
    shares = np.cumsum(1 / np.arange(1, VOCABULARY + 1))
    drawn = np.searchsorted(shares / shares[-1], rng.random((texts, length)))
    return [" ".join([vocabulary[number] for number in row]) for row in drawn]


def write_collection(path: Path, passages: int) -> None:
    """Write a collection of generated passages."""
    rng = np.random.default_rng(0)
    with path.open("w", encoding="utf-8") as handle:
        for start in range(0, passages, CHUNK):
            for place, text in enumerate(words_of(rng, min(CHUNK, passages - start), WORDS)):
                handle.write(json.dumps({"id": f"d{start + place}", "text": text}) + "\n")


def seconds_of(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def opened(folder: Path, passages: int):
    """The collection of a size, and its retrieval settings."""
    from core.settings import RetrievalSettings
    from retrieval.collection import open_collection

    return open_collection(str(folder / f"{passages}.jsonl"), folder / "cache"), RetrievalSettings(engine="bm25s")


def build(folder: Path, passages: int, batches: int) -> dict[str, float]:
    """Read the collection and index it."""
    from core.progress import peak_memory_mb
    from retrieval.bm25s_index import BM25sIndex

    read = seconds_of(lambda: opened(folder, passages))
    collection, settings = opened(folder, passages)
    indexed = seconds_of(lambda: BM25sIndex(settings, collection))
    size = sum(file.stat().st_size for file in (collection.folder / "bm25s").rglob("*") if file.is_file())
    return {"read_s": read, "build_s": indexed, "peak_mb": peak_memory_mb(), "index_mb": size / 1e6}


def search(folder: Path, passages: int, batches: int) -> dict[str, float]:
    """Search the same batches with ours and with bare bm25s, alternately."""
    from bm25s import BM25

    from core.progress import peak_memory_mb
    from retrieval.analyzer import ANALYZERS
    from retrieval.bm25s_index import BM25sIndex

    collection, settings = opened(folder, passages)
    figures = {"load_s": seconds_of(lambda: BM25sIndex(settings, collection))}
    analyzer = ANALYZERS[settings.analyzer]()
    [index] = [path for path in (collection.folder / "bm25s").iterdir() if path.is_dir()]
    ours = BM25sIndex(settings, collection, threads=THREADS)
    rng = np.random.default_rng(1)
    queries = [words_of(rng, BATCH, QUERY_WORDS) for _ in range(batches + 1)]
    ours.search(queries[0], K)  # the first batch loads the index into memory
    figures["search_peak_mb"] = peak_memory_mb()
    bare = BM25.load(index, show_progress=False)

    def retrieve(batch: list[str]) -> None:
        bare.retrieve([analyzer(query) for query in batch], k=K, n_threads=THREADS, show_progress=False)

    retrieve(queries[0])
    our_time = bare_time = 0.0
    for batch in queries[1:]:
        our_time += seconds_of(lambda batch=batch: ours.search(batch, K))
        bare_time += seconds_of(lambda batch=batch: retrieve(batch))
    return figures | {"ratio_to_bare": our_time / bare_time, "queries_per_s": batches * BATCH / our_time}


def rank(folder: Path, passages: int, batches: int) -> dict[str, float]:
    """Search a few queries with rank-bm25's own class."""
    from rank_bm25 import BM25Okapi

    from retrieval.analyzer import ANALYZERS

    collection, settings = opened(folder, passages)
    analyzer = ANALYZERS[settings.analyzer]()
    model = BM25Okapi([analyzer(passage.content) for passage in collection.passages()])
    queries = words_of(np.random.default_rng(1), 20, QUERY_WORDS)

    def retrieve() -> None:
        for query in queries:
            np.argsort(-model.get_scores(analyzer(query)))[:K]

    return {"queries_per_s": len(queries) / seconds_of(retrieve)}


WAYS = {"build": build, "search": search, "rank": rank}


def in_process(way: str, folder: Path, passages: int, batches: int) -> dict[str, float]:
    """Run one measurement in a separate process."""
    words = [sys.executable, "-m", "tests.benchmarks.retrieval", "--way", way, "--folder", str(folder)]
    words += ["--passages", str(passages), "--batches", str(batches)]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--passages", type=int, default=1_000_000, help="size of the largest collection")
    parser.add_argument("--batches", type=int, default=3, help="number of timed batches of 1,000 queries")
    parser.add_argument("--folder", type=Path, help="folder for the collections (default: a temporary folder)")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        print(json.dumps(WAYS[arguments.way](arguments.folder, arguments.passages, arguments.batches)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        sizes = sorted({min(SMALL, arguments.passages), arguments.passages // 10, arguments.passages})
        by_size = {}
        for passages in sizes:
            write_collection(folder / f"{passages}.jsonl", passages)
            by_size[passages] = in_process("build", folder, passages, arguments.batches)
            by_size[passages] |= in_process("search", folder, passages, arguments.batches)
            print(
                f"{passages} passages: " + ", ".join(f"{k} {v:.4g}" for k, v in by_size[passages].items()), flush=True
            )
        plain = in_process("rank", folder, sizes[0], arguments.batches)
    large, tenth = by_size[arguments.passages], by_size[arguments.passages // 10]
    figures = {
        "bm25s": large | {"growth_of_query_time": tenth["queries_per_s"] / large["queries_per_s"]},
        "rank_bm25": {"ratio": by_size[sizes[0]]["queries_per_s"] / plain["queries_per_s"]} | plain,
    }
    print(f"query time grows {figures['bm25s']['growth_of_query_time']:.3g} times from a tenth of the passages to all")
    print(f"bm25s has {figures['rank_bm25']['ratio']:.4g} times the queries/s of rank-bm25 ({sizes[0]} passages)")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
