"""Conversations from files: the project's own `turns.jsonl`, and the data sets that have a reader."""

from pathlib import Path
from typing import Any

from core.artifacts import read_json_lines, sha256
from core.errors import InputError, fields_of, short
from core.inputs import data_file, qrels_file
from core.records import Turn
from core.settings import Settings
from rewriter import mtrag, qrecc, topiocqa

ROLES = ("user", "assistant")
KINDS = {str: "a text", list: "a list", dict: "an object"}
READERS = {"topiocqa": topiocqa.read, "qrecc": qrecc.read, "mtrag": mtrag.read}


def turns_of(settings: Settings, which: str, limit: int | None = None) -> list[Turn]:
    """The turns of a run, read in its `data.format`.

    Args:
        settings: of the run.
        which: `train` or `test`.
        limit: the first so many.

    Raises:
        InputError: a file is missing, or something in it is not usable.
    """
    path, qrels = data_file(settings, which), qrels_file(settings, which)
    if settings.data.format in READERS:
        return READERS[settings.data.format](path, qrels)[:limit]
    return read_turns(path, limit)


def turns_hash(settings: Settings, which: str) -> str:
    """SHA-256 of all files that the `train` or `test` turns are read from: what a stage records as its input."""
    files = [data_file(settings, which)]
    qrels = qrels_file(settings, which)
    if qrels is not None:
        files += [qrels, *(mtrag.rewrite_files(qrels) if settings.data.format == "mtrag" else [])]
    return sha256(*files)


def read_turns(path: Path, limit: int | None = None) -> list[Turn]:
    """Read a file of turns.

    Args:
        path: JSONL, one turn a line (fields: `core.records.Turn`).
        limit: read the first so many.

    Raises:
        InputError: a line is not usable (file, line, field, value), an id stands twice, or there is no turn.
    """
    turns: dict[str, Turn] = {}
    for number, record in read_json_lines(path):
        turn = turn_of(record, f"{path}:{number}")
        if turn.id in turns:
            raise InputError(f"{path}:{number}: the id `{turn.id}` stands twice; ids must be unique.")
        turns[turn.id] = turn
        if len(turns) == limit:
            break
    if not turns:
        raise InputError(
            f"{path}: no turns in it; one JSON object a line is expected, with `id`, `history`, `question`."
        )
    return list(turns.values())


def turn_of(record: dict[str, Any], place: str) -> Turn:
    """A turn from its JSON object.

    Raises:
        InputError: a field is missing or of the wrong type; begins with `place`.
    """

    def need(ok: bool, name: str, expected: str) -> None:
        if ok:
            return
        if name not in record:
            there = fields_of(record)
            raise InputError(f"{place}: the field `{name}` is missing (there are: {there}); expected {expected}.")
        raise InputError(f"{place}: `{name}` must be {expected}, got {short(record[name])}.")

    text = "a text that is not empty"
    for name in ("id", "question"):
        need(isinstance(record.get(name), str) and record[name].strip() != "", name, text)
    need(record["id"].isprintable(), "id", "a text without control characters")
    history = record.get("history")
    need(isinstance(history, list), "history", 'a list of {"role", "content"}; [] for a first question')
    for message in history:
        good = isinstance(message, dict) and message.get("role") in ROLES and isinstance(message.get("content"), str)
        need(good, "history", 'a list of {"role": "user" or "assistant", "content": text}')
    optional = {"answers": list, "relevant": dict, "rewrite": str, "conversation": str, "kind": str, "reply": str}
    for name, kind in optional.items():
        if record.get(name) is not None:
            need(isinstance(record[name], kind), name, KINDS[kind])
    answers, relevant = record.get("answers") or [], record.get("relevant") or {}
    need(all(isinstance(a, str) and a.strip() for a in answers), "answers", "a list of texts that are not empty")
    grades = all(type(grade) is int and abs(grade) <= 1000 for grade in relevant.values())
    need(grades, "relevant", "document ids with whole-number grades (1 and above is relevant, at most 1000)")
    return Turn(
        id=record["id"],
        history=tuple({"role": m["role"], "content": m["content"]} for m in history),
        question=record["question"],
        answers=tuple(answers),
        relevant=relevant,
        rewrite=record.get("rewrite") or None,
        conversation=record.get("conversation") or "",
        kind=record.get("kind") or "",
        reply=(record.get("reply") or "").strip(),
    )
