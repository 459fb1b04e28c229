"""A small pooled collection (`data.pool`): the gold passages of all turns, and what BM25 finds beside them.

    python -m train.pool --config configs/topiocqa.yaml --data.pool 50

Reads all training and held-out turns, and the whole collection; writes `<run>/data/pool.jsonl`, a collection like any
other, and `<run>/data/pool.json`, which says what it was made from. With `data.sets`, each set has a pool of its own,
`pool-<set>.jsonl`. The whole run and the evaluation make it before anything else. It is there whole or not at all.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from core.artifacts import changes, read_json, write_atomic, write_json
from core.cli import read_settings, run_command
from core.data_paths import key_of, pool_file, set_names, splits_of, whole_corpus
from core.errors import InputError
from core.records import Turn, plain
from core.runtime import Progress, log, process, set_up_logging, wait_for_all
from core.settings import RetrievalSettings, Settings
from retrieval.collection import collection_of
from retrieval.retriever import Retriever, retriever_of
from rewriter.conversations import turns_hash, turns_of

BATCH = 256


def make_pool(settings: Settings) -> None:
    """Make the pool that `data.pool` asks for, unless it is there or none is asked for.

    Raises:
        InputError: the run folder holds a pool made from something else; names the difference.
    """
    if settings.data.pool and process()[0] == 0:
        for name in set_names(settings):
            write_pool(settings, name)
    wait_for_all()


def write_pool(settings: Settings, name: str) -> None:
    """Write the pool of a data set and its note, or find that they are there."""
    path = pool_file(settings, name)
    note, plan = path.with_suffix(".json"), plan_of(settings, name)
    if note.exists() and path.exists():
        refuse_to_mix(path, read_json(note)["plan"], plan)
        log.info("pool: complete, nothing to do (%s)", path)
        return
    all_turns = [turn for split in splits_of(settings) for turn in turns_of(settings, split, settings.run.limit)]
    turns = [turn for turn in all_turns if turn.dataset == name]
    gold = {doc for turn in turns for doc, grade in turn.relevant.items() if grade >= 1}
    collection = collection_of(settings, whole_corpus(settings, name))
    bm25 = retriever_of(bm25_settings(settings.retrieval), collection)
    kept = gold | negatives_of(turns, bm25, settings.data.pool)
    counts = {"passages": 0, "gold": 0, "collection": 0}

    def lines() -> Iterable[str]:
        for passage in collection.passages():
            counts["collection"] += 1
            if passage.id in kept:
                counts["passages"] += 1
                counts["gold"] += passage.id in gold
                yield json.dumps(plain(passage), ensure_ascii=False) + "\n"

    write_atomic(path, lines())
    write_json(note, {"plan": plan, "counts": counts})
    if counts["gold"] < len(gold):
        log.warning("pool: %d of %d gold passages are not in the collection", len(gold) - counts["gold"], len(gold))
    said = counts | {"path": path}
    log.info("pool: %(passages)d of %(collection)d passages, %(gold)d of them gold -> %(path)s", said)


def plan_of(settings: Settings, name: str) -> dict[str, Any]:
    """Everything that decides what is in the pool of a data set, under the names of the settings."""
    rule = bm25_settings(settings.retrieval)
    decided = {f"retrieval.{name}": getattr(rule, name) for name in ("engine", "analyzer", "k1", "b")}
    inputs = {f"data.{split}": turns_hash(settings, split) for split in splits_of(settings)}
    inputs[key_of("corpus", name)] = collection_of(settings, whole_corpus(settings, name)).identity
    return {"data.pool": settings.data.pool, "run.limit": settings.run.limit} | decided | inputs


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


def bm25_settings(settings: RetrievalSettings) -> RetrievalSettings:
    """The pool is made by BM25, whatever engine the run has."""
    return replace(settings, engine="auto")


def main() -> None:
    settings = read_settings(__doc__)
    set_up_logging()
    if not settings.data.pool:
        raise InputError(f"`data.pool` must be at least 1 to make a pool, got {settings.data.pool}.")
    make_pool(settings)


if __name__ == "__main__":
    run_command(main)
