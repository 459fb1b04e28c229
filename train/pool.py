"""Pooled collections (`data.pool`): the gold passages of all turns, and what BM25 finds beside them.

`<run>/data/pool.jsonl` is a collection like any other; `pool.json` beside it tells what it was made from. With
`data.sets`, each set has a pool of its own, `pool-<set>.jsonl`.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from core.artifacts import read_json, write_atomic, write_json
from core.data_sources import SPLITS, DataSource
from core.errors import InputError
from core.records import Turn, to_json_dict
from core.runtime import Progress, log, process, wait_for_all
from core.settings import RetrievalSettings
from core.stages import changes
from retrieval.collection import open_collections
from retrieval.retriever import Retriever, retriever_of
from rewriter.conversations import load_turns

BATCH = 256


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
    note = path.with_suffix(".json")
    if note.exists() and path.exists():
        refuse_to_mix(path, read_json(note)["plan"], plan)
        log.info("pool: complete, nothing to do (%s)", path)
        return
    turns = [turn for split in splits.values() for turn in split]
    gold = {doc for turn in turns for doc, grade in turn.relevant.items() if grade >= 1}
    kept = gold | negatives_of(turns, retriever_of(bm25, collection), size)
    counts = {"passages": 0, "gold": 0, "collection": 0}

    def lines() -> Iterable[str]:
        for passage in collection.passages():
            counts["collection"] += 1
            if passage.id in kept:
                counts["passages"] += 1
                counts["gold"] += passage.id in gold
                yield json.dumps(to_json_dict(passage), ensure_ascii=False) + "\n"

    write_atomic(path, lines())
    write_json(note, {"plan": plan, "counts": counts})
    if counts["gold"] < len(gold):
        log.warning("pool: %d of %d gold passages are not in the collection", len(gold) - counts["gold"], len(gold))
    said = counts | {"path": path}
    log.info("pool: %(passages)d of %(collection)d passages, %(gold)d of them gold -> %(path)s", said)


def refuse_to_mix(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise when the pool at `path` was made from something else."""
    changed = [text for key in sorted({*before, *now}) for text in changes(key, before.get(key), now.get(key))]
    if changed:
        raise InputError(f"{path} was made from something else: {'; '.join(changed)}. Use another `--run.dir`.")


def negatives_of(turns: Sequence[Turn], retriever: Retriever, number: int) -> set[str]:
    """What BM25 finds for each turn's question, and for its rewrite where it has one.

    Args:
        turns: of all splits of the data set.
        retriever: over the whole collection.
        number: passages for each query that are not the turn's own gold passages, best first.
    """
    found: set[str] = set()
    with Progress("pool", len(turns)) as progress:
        for start in range(0, len(turns), BATCH):
            batch = turns[start : start + BATCH]
            asked = [(turn, query) for turn in batch for query in queries_of(turn)]
            depth = number + max(len(turn.relevant) for turn in batch)
            rankings = retriever.search([query for _, query in asked], depth)
            for (turn, _), hits in zip(asked, rankings, strict=True):
                found.update([hit.doc for hit in hits if turn.relevant.get(hit.doc, 0) < 1][:number])
            progress.advance(len(batch))
    return found


def queries_of(turn: Turn) -> list[str]:
    """The question as it stands, and the rewrite where there is another."""
    return [turn.question, *([turn.rewrite] if turn.rewrite and turn.rewrite != turn.question else [])]
