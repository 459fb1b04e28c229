"""Pooled collections (`data.pool`): the gold passages of all turns, and the passages that BM25 ranks high for them.

`<run>/data/pool.jsonl` has the format of any collection; `pool.json` beside it records its inputs. With `data.sets`,
each set has its own pool, `pool-<set>.jsonl`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from core.artifacts import read_json, write_atomic, write_json
from core.data_sources import SPLITS, DataSource, with_pools
from core.distributed import process, wait_for_all
from core.errors import InputError
from core.json_records import to_json_line
from core.progress import Progress, log
from core.records import Turn
from core.settings import Settings
from core.stage_runner import batched
from core.stages import changes
from retrieval.collection import Collection, open_collections
from retrieval.engines import BM25_SETTINGS, build_engine
from retrieval.retriever import Retriever
from rewriter.conversations import load_turns

BATCH = 256  # turns searched at once


def make_pools(sources: Sequence[DataSource], settings: Settings) -> list[DataSource]:
    """Build the pooled collection of each data set, unless it exists.

    Returns:
        The data sets with their pools as collections.

    Raises:
        InputError: the run folder has a pool with other inputs; names the difference.
    """
    pooled = with_pools(sources, settings.run.path)
    if process()[0] == 0:
        for source, pool in zip(sources, pooled, strict=True):
            make_pool(source, Path(pool.corpus), settings)
    wait_for_all()
    return pooled


def make_pool(source: DataSource, path: Path, settings: Settings) -> None:
    """Write the pool of a data set and a record of its inputs, unless both exist."""
    size, limit, bm25 = settings.data.pool, settings.run.limit, replace(settings.retrieval, engine="auto")
    splits = {split: load_turns([source], split, limit) for split in SPLITS if source.has(split)}
    collection = open_collections([source], bm25.cache, settings.data.on_bad)[source.name]
    plan = {"size": size, "limit": limit, "corpus": collection.identity}
    plan |= {f"retrieval.{name}": getattr(bm25, name) for name in ("engine", *BM25_SETTINGS)}
    plan |= {f"data.{split}": turns.fingerprint for split, turns in splits.items()}
    manifest = path.with_suffix(".json")
    if manifest.exists() and path.exists():
        before = read_json(manifest, "plan")["plan"]
        changed = [text for key in sorted({*before, *plan}) for text in changes(key, before.get(key), plan.get(key))]
        if changed:
            raise InputError(f"{path} was built from other inputs: {'; '.join(changed)}. Use another `--run.dir`.")
        log.info("pool: complete, nothing to do (%s)", path)
        return
    turns = [turn for split in splits.values() for turn in split]
    gold = {doc for turn in turns for doc in turn.gold}
    counts = write_pool(path, collection, gold, hard_negatives(turns, build_engine(bm25, collection), size))
    write_json(manifest, {"plan": plan, "counts": counts})


def hard_negatives(turns: Sequence[Turn], retriever: Retriever, size: int) -> set[str]:
    """The top `size` passages for the question and the rewrite of each turn, without the turn's gold passages."""
    negatives: set[str] = set()
    with Progress("pool", len(turns)) as progress:
        for batch in batched(turns, BATCH):
            queries = [(turn, query) for turn in batch for query in {turn.question, turn.rewrite} if query]
            depth = size + max(len(turn.relevant) for turn in batch)
            rankings = retriever.search([query for _, query in queries], depth)
            for (turn, _), hits in zip(queries, rankings, strict=True):
                negatives.update([hit.doc for hit in hits if hit.doc not in turn.gold][:size])
            progress.advance(len(batch))
    return negatives


def write_pool(path: Path, collection: Collection, gold: set[str], negatives: set[str]) -> dict[str, int]:
    """Write the pool as JSONL, atomically, in the order of the collection.

    Returns:
        Number of `passages` in the pool, of `gold` passages among them, and of passages in the `collection`.
    """
    counts = {"passages": 0, "gold": 0, "collection": len(collection)}

    def lines() -> Iterator[str]:
        for passage in collection.passages():
            if passage.id in gold or passage.id in negatives:
                counts["passages"] += 1
                counts["gold"] += passage.id in gold
                yield to_json_line(passage)

    write_atomic(path, lines())
    if counts["gold"] < len(gold):
        log.warning("pool: %d of %d gold passages are not in the collection", len(gold) - counts["gold"], len(gold))
    log.info(
        "pool: %(passages)d of %(collection)d passages, %(gold)d of them gold -> %(path)s", counts | {"path": path}
    )
    return counts
