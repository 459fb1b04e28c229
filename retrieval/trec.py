"""Runs and qrels as TREC files."""

from pathlib import Path

from core.artifacts import write_atomic
from core.records import Hit

Run = dict[str, dict[str, float]]
Qrels = dict[str, dict[str, int]]


def strict_run(rankings: dict[str, list[Hit]]) -> Run:
    """Rankings as query -> document -> score with strictly falling scores.

    Equal scores would leave the order to document ids; here the ranking's own order decides, so scores are `1 /
    rank`-like: n for the first of n documents, 1 for the last.
    """
    return {
        query: {hit.doc: float(len(hits) - rank) for rank, hit in enumerate(hits)} for query, hits in rankings.items()
    }


def write_run(path: Path, rankings: dict[str, list[Hit]], tag: str) -> None:
    """Write a run: `query Q0 document rank score tag`, scores strictly falling. Blanks in ids become `_`."""
    lines = [
        f"{field(query)} Q0 {field(hit.doc)} {rank} {len(hits) - rank + 1} {tag}\n"
        for query, hits in rankings.items()
        for rank, hit in enumerate(hits, 1)
    ]
    write_atomic(path, "".join(lines))


def write_qrels(path: Path, qrels: Qrels) -> None:
    """Write qrels: `query 0 document grade`. Blanks in ids become `_`."""
    lines = [
        f"{field(query)} 0 {field(doc)} {grade}\n" for query, docs in qrels.items() for doc, grade in docs.items()
    ]
    write_atomic(path, "".join(lines))


def field(name: str) -> str:
    """An id without blanks, as the format wants it."""
    return "_".join(name.split())
