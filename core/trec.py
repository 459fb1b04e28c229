"""Runs and qrels as TREC files."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from core.artifacts import write_atomic
from core.errors import InputError
from core.records import Hit

Run = dict[str, dict[str, float]]
Qrels = dict[str, dict[str, int]]
LARGEST_GRADE = 1000  # trec_eval counts the documents of each
IRREGULAR = (b"  ", b" \n", b"\n ", b"\t", b"\r", b"\v", b"\f")  # blanks that no program writes into a run


def strict_run(rankings: dict[str, list[Hit]]) -> Run:
    """Rankings as query -> document -> score with strictly falling scores.

    Equal scores would leave the order to document ids; here the ranking's own order decides, so scores are `1 /
    rank`-like: n for the first of n documents, 1 for the last.
    """
    return {
        query: {hit.doc: float(len(hits) - rank) for rank, hit in enumerate(hits)} for query, hits in rankings.items()
    }


def write_run(path: Path, rankings: dict[str, list[Hit]], tag: str) -> None:
    """Write a run: `query Q0 document rank score tag`, scores strictly falling. Blanks in ids become `%20`."""
    lines = [
        f"{field(query)} Q0 {field(hit.doc)} {rank} {len(hits) - rank + 1} {tag}\n"
        for query, hits in rankings.items()
        for rank, hit in enumerate(hits, 1)
    ]
    write_atomic(path, "".join(lines))


def write_qrels(path: Path, qrels: Qrels) -> None:
    """Write qrels: `query 0 document grade`. Blanks in ids become `%20`."""
    lines = [
        f"{field(query)} 0 {field(doc)} {grade}\n" for query, docs in qrels.items() for doc, grade in docs.items()
    ]
    write_atomic(path, "".join(lines))


def field(name: str) -> str:
    """An id without blanks, as the format wants it: blanks are written as `%20`, and `%` as `%25`."""
    return re.sub(r"[\s%]", lambda sign: quote(sign[0]), name)


def rows_of(path: Path, form: str, heading: str = "") -> Iterator[tuple[int, list[str]]]:
    """Line numbers and fields of a TREC file; blank lines are passed over.

    Args:
        path: the file.
        form: names of the fields, separated by blanks.
        heading: a first line that makes the form its own; it is passed over.

    Raises:
        InputError: the file cannot be read, holds nothing, or a line has another number of fields.
    """
    number, found, wanted = 0, False, len(form.split())
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                fields = line.split()
                if number == 1 and heading and fields == heading.split():
                    form, wanted = heading, len(fields)
                elif len(fields) == wanted:
                    found = True
                    yield number, fields
                elif fields:
                    raise InputError(f"{path}:{number}: expected `{form}`, got {line.strip()!r:.80}.")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: line {number + 1} or later is not UTF-8 text; unpack a compressed file first."
        ) from error
    if not found:
        raise InputError(f"{path}: nothing in it; expected lines `{form}`.")


def read_run(path: Path) -> Run:
    """A TREC run: query -> document -> score.

    Raises:
        InputError: a line is not usable, a score is not a number, or a document stands twice for a query.
    """
    if regular := read_regular_run(path):
        return regular
    run: Run = {}
    for number, (query, _, doc, _, text, _) in rows_of(path, "query Q0 document rank score tag"):
        try:
            score = float(text)
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            raise InputError(f"{path}:{number}: the score must be a finite number, got `{text}`.")
        found = run.setdefault(query, {})
        if doc in found:
            raise InputError(f"{path}:{number}: document `{doc}` stands twice for query `{query}`.")
        found[doc] = score
    return run


def read_regular_run(path: Path) -> Run | None:
    """A run as programs write it, one blank between fields and the lines of a query together, in half the time.

    Returns:
        What `read_run` does, or None where a line is out of the ordinary, so that it may say what is wrong with it.
    """
    from pyarrow import ArrowInvalid, BufferReader, compute, csv

    columns = dict(query="string", Q0="string", document="string", rank="string", score="float64", tag="string")
    try:
        data = path.read_bytes()
        if data[:1] in b" \xef" or data[-1:] == b" " or any(sign in data for sign in IRREGULAR):
            return None
        table = csv.read_csv(
            BufferReader(data),
            csv.ReadOptions(column_names=list(columns)),
            csv.ParseOptions(delimiter=" ", quote_char=False),
            csv.ConvertOptions(column_types=columns, null_values=[]),
        )
    except (ArrowInvalid, OSError):
        return None
    if not compute.all(compute.is_finite(table["score"])).as_py():
        return None
    queries = compute.run_end_encode(table["query"].combine_chunks())
    documents, scores = table["document"].to_pylist(), table["score"].to_pylist()
    run: Run = {}
    start = 0
    for query, end in zip(queries.values.to_pylist(), queries.run_ends.to_pylist(), strict=True):
        found = dict(zip(documents[start:end], scores[start:end], strict=True))
        if query in run or len(found) < end - start:
            return None
        run[query], start = found, end
    return run


def read_qrels(path: Path) -> Qrels:
    """Relevance judgements as TREC (`query 0 document grade`) or BEIR (`query-id corpus-id score`, with this heading)
    writes them: query -> document -> grade.

    Raises:
        InputError: a line is not usable, a grade is no whole number, or a document has two grades for a query.
    """
    qrels: Qrels = {}
    for number, (query, *_, doc, text) in rows_of(path, "query 0 document grade", "query-id corpus-id score"):
        try:
            grade = int(text)
        except ValueError:
            raise InputError(f"{path}:{number}: the grade must be a whole number, got `{text}`.") from None
        if abs(grade) > LARGEST_GRADE:
            raise InputError(f"{path}:{number}: grades go up to {LARGEST_GRADE}, got {text:.20}.")
        if qrels.setdefault(query, {}).setdefault(doc, grade) != grade:
            raise InputError(f"{path}:{number}: document `{doc}` has two grades for query `{query}`.")
    return qrels
