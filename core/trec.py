"""Read and write TREC runs and qrels; errors name the line."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from core.artifacts import read_lines, write_atomic
from core.errors import InputError
from core.records import Hit

Run = dict[str, dict[str, float]]  # query -> document -> score
Qrels = dict[str, dict[str, int]]  # query -> document -> grade
MAX_GRADE = 1000  # trec_eval allocates a counter per grade


def strict_run(rankings: dict[str, list[Hit]]) -> Run:
    """Convert rankings to a run with strictly decreasing scores: n for the first of n documents, 1 for the last.

    trec_eval orders equal scores by document id; strictly decreasing scores keep the order of the ranking.
    """
    return {
        query: {hit.doc: float(len(hits) - rank) for rank, hit in enumerate(hits)} for query, hits in rankings.items()
    }


def write_run(path: Path, rankings: dict[str, list[Hit]], tag: str) -> None:
    """Write a run, `query Q0 document rank score tag` per line, with the scores of `strict_run`."""
    lines = (
        f"{escape_id(query)} Q0 {escape_id(hit.doc)} {rank} {len(hits) - rank + 1} {tag}\n"
        for query, hits in rankings.items()
        for rank, hit in enumerate(hits, 1)
    )
    write_atomic(path, lines)


def write_qrels(path: Path, qrels: Qrels) -> None:
    """Write relevance judgments, `query 0 document grade` per line."""
    lines = (
        f"{escape_id(query)} 0 {escape_id(doc)} {grade}\n"
        for query, docs in qrels.items()
        for doc, grade in docs.items()
    )
    write_atomic(path, lines)


def escape_id(text: str) -> str:
    """Percent-encode `%` and white space, which separates fields, in an id."""
    return re.sub(r"[\s%]", lambda match: quote(match[0]), text)


def read_fields(path: Path, layout: str, header: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield the place (`file:line`) and the fields of each line of a TREC file.

    Args:
        path: the file.
        layout: names of the fields, separated by spaces.
        header: another layout, which applies if it is the first line.

    Raises:
        InputError: the file cannot be read or is empty, or a line has the wrong number of fields.
    """
    empty = True
    for number, line in read_lines(path):
        fields = line.split()
        if number == 1 and fields == header.split():
            layout = header
            continue
        if len(fields) != len(layout.split()):
            raise InputError(f"{path}:{number}: expected `{layout}`, got {line.strip()!r:.80}.")
        empty = False
        yield f"{path}:{number}", fields
    if empty:
        raise InputError(f"{path}: the file is empty; expected lines `{layout}`.")


def read_run(path: Path) -> Run:
    """Read a TREC run.

    Raises:
        InputError: a line is invalid, a score is not a finite number, or a query has a document twice.
    """
    run: Run = {}
    for place, (query, _, doc, _, text, _) in read_fields(path, "query Q0 document rank score tag"):
        try:
            score = float(text)
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            raise InputError(f"{place}: the score must be a finite number, got `{text}`.")
        if doc in run.setdefault(query, {}):
            raise InputError(f"{place}: document `{doc}` appears twice for query `{query}`.")
        run[query][doc] = score
    return run


def read_qrels(path: Path) -> Qrels:
    """Read relevance judgments of TREC (`query 0 document grade`) or BEIR (`query-id corpus-id score`, with header).

    Raises:
        InputError: a line is invalid, a grade is not a whole number, or a query has two grades for a document.
    """
    qrels: Qrels = {}
    for place, (query, *_, doc, text) in read_fields(path, "query 0 document grade", "query-id corpus-id score"):
        try:
            grade = int(text)
        except ValueError:
            raise InputError(f"{place}: the grade must be a whole number, got `{text}`.") from None
        if abs(grade) > MAX_GRADE:
            raise InputError(f"{place}: the grade must be between -{MAX_GRADE} and {MAX_GRADE}, got {text:.20}.")
        if qrels.setdefault(query, {}).setdefault(doc, grade) != grade:
            raise InputError(f"{place}: document `{doc}` has two grades for query `{query}`.")
    return qrels
