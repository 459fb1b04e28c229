"""Pooled collections (`data.pool`): the gold passages of all turns, and what BM25 finds beside them.

`<run>/data/pool.jsonl` is a collection like any other; `pool.json` beside it tells what it was made from. With
`data.sets`, each set has a pool of its own, `pool-<set>.jsonl`.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from core.artifacts import read_json, write_json
from core.data_sources import SPLITS, DataSource
from core.distributed import process, wait_for_all
from core.errors import InputError
from core.progress import log
from core.settings import RetrievalSettings
from core.stages import changes
from retrieval.collection import open_collections
from retrieval.engines import build_engine
from retrieval.pooled_corpus import write_pooled_corpus
from rewriter.conversations import load_turns


def make_pools(
    sources: Sequence[DataSource], size: int, limit: int | None, retrieval: RetrievalSettings, run_dir: Path
) -> list[DataSource]:
    """Make the pooled collection of each data set, unless it is there.

    Args:
        sources: the data sets.
        size: passages that BM25 adds for each query.
        limit: the first so many turns of each split.
        retrieval: of the run; `engine` is not looked at.
        run_dir: the pools go into `<run_dir>/data`.

    Returns:
        The data sets with their pools as collections.

    Raises:
        InputError: the run folder holds a pool made from something else; names the difference.
    """
    pooled = []
    for source in sources:
        path = run_dir / "data" / (f"pool-{source.name}.jsonl" if source.name else "pool.jsonl")
        if process()[0] == 0:
            write_pool(source, path, size, limit, replace(retrieval, engine="auto"))
        pooled.append(replace(source, corpus=str(path)))
    wait_for_all()
    return pooled


def write_pool(source: DataSource, path: Path, size: int, limit: int | None, bm25: RetrievalSettings) -> None:
    """Write the pool of a data set with a note of what it was made from, unless both are there."""
    splits = {split: load_turns([source], split, limit) for split in SPLITS if source.has(split)}
    source.check_corpus()
    collection = open_collections([source], bm25.cache)[source.name]
    plan = {"size": size, "limit": limit, "corpus": collection.identity}
    plan |= {f"retrieval.{name}": getattr(bm25, name) for name in ("engine", "analyzer", "k1", "b")}
    plan |= {f"data.{split}": turns.fingerprint for split, turns in splits.items()}
    manifest = path.with_suffix(".json")
    if manifest.exists() and path.exists():
        before = read_json(manifest)["plan"]
        changed = [text for key in sorted({*before, *plan}) for text in changes(key, before.get(key), plan.get(key))]
        if changed:
            raise InputError(f"{path} was made from something else: {'; '.join(changed)}. Use another `--run.dir`.")
        log.info("pool: complete, nothing to do (%s)", path)
        return
    turns = [turn for split in splits.values() for turn in split]
    counts = write_pooled_corpus(path, turns, collection, build_engine(bm25, collection), size)
    write_json(manifest, {"plan": plan, "counts": counts})
    log.info(
        "pool: %(passages)d of %(collection)d passages, %(gold)d of them gold -> %(path)s", counts | {"path": path}
    )
