"""Pooled collections: the gold passages of all turns, and the passages that BM25 ranks high for them."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from core.artifacts import write_atomic
from core.json_records import to_json_dict
from core.progress import Progress, log
from core.records import Turn
from retrieval.collection import Collection
from retrieval.retriever import Retriever

BATCH = 256  # turns searched at once


def write_pooled_corpus(
    path: Path, turns: Sequence[Turn], collection: Collection, retriever: Retriever, number: int
) -> dict[str, int]:
    """Write the pool of a collection as JSONL, in the order of the collection, whole or not at all.

    Args:
        path: the file.
        turns: of all splits, with their `relevant` documents.
        collection: the whole collection.
        retriever: ranks its passages.
        number: passages per query beside the gold passages of its turn.

    Returns:
        Number of `passages` in the pool, of `gold` passages among them, and of passages in the `collection`.
    """
    gold = {doc for turn in turns for doc, grade in turn.relevant.items() if grade >= 1}
    pool = gold | hard_negatives(turns, retriever, number)
    counts = {"passages": 0, "gold": 0, "collection": len(collection)}

    def lines() -> Iterator[str]:
        for passage in collection.passages():
            if passage.id in pool:
                counts["passages"] += 1
                counts["gold"] += passage.id in gold
                yield json.dumps(to_json_dict(passage), ensure_ascii=False) + "\n"

    write_atomic(path, lines())
    if counts["gold"] < len(gold):
        log.warning("pool: %d of %d gold passages are not in the collection", len(gold) - counts["gold"], len(gold))
    return counts


def hard_negatives(turns: Sequence[Turn], retriever: Retriever, number: int) -> set[str]:
    """The best passages for each turn's question and for its rewrite, without the gold passages of the turn.

    Args:
        turns: the turns.
        retriever: over the whole collection.
        number: passages per query.
    """
    negatives: set[str] = set()
    with Progress("pool", len(turns)) as progress:
        for start in range(0, len(turns), BATCH):
            batch = turns[start : start + BATCH]
            queries = [
                (turn, query) for turn in batch for query in dict.fromkeys(filter(None, [turn.question, turn.rewrite]))
            ]
            depth = number + max(len(turn.relevant) for turn in batch)
            rankings = retriever.search([query for _, query in queries], depth)
            for (turn, _), hits in zip(queries, rankings, strict=True):
                negatives.update([hit.doc for hit in hits if turn.relevant.get(hit.doc, 0) < 1][:number])
            progress.advance(len(batch))
    return negatives
