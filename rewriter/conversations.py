"""Conversations from files: the project's own `turns.jsonl`, and the data sets that have a reader."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from core.artifacts import read_json_lines, sha256
from core.data_paths import by_set, check_files, data_file, file_with, key_of, qrels_file, sets_with
from core.errors import InputError, fields_of, short
from core.records import Turn
from core.settings import Settings
from rewriter import mtrag, qrecc, topiocqa

ROLES = ("user", "assistant")
KINDS = {str: "a text", list: "a list", dict: "an object"}
READERS = {"topiocqa": topiocqa.read, "qrecc": qrecc.read, "mtrag": mtrag.read}


def turns_of(settings: Settings, split: str, limit: int | None = None) -> list[Turn]:
    """The turns of a run, data set by data set, read in its `data.format`.

    Args:
        settings: of the run.
        split: `train`, `development` or `test`.
        limit: the first so many of each data set.

    Raises:
        InputError: a file is missing, something in it is not usable, two data sets share the id of a turn, or no
            conversation is left for the split.
    """
    check_files(settings, split)
    chosen: list[Turn] = []
    set_of: dict[str, str] = {}
    for name in sets_with(settings, split):
        field, shares = file_with(settings, split, name), held_out(settings, name)
        whole = field == "test" or not any(shares)
        turns = read_set(settings, field, name, limit if whole else None)
        for turn in turns:
            other = set_of.setdefault(turn.id, name)
            if other != name:
                places = [key_of(file_with(settings, split, one), one) for one in (other, name)]
                raise InputError(
                    f"the turn `{turn.id}` is in both `{places[0]}` and `{places[1]}`; ids of turns must be unique in "
                    "all of `data.sets`."
                )
        if not whole:
            turns = part_of(turns, split, *shares)
            if not turns:
                raise InputError(
                    f"`{key_of(field, name)}` has no conversation left for `{split}`; lower `data.test_share` "
                    f"({settings.data.test_share}) or `data.development_share` ({settings.data.development_share})."
                )
        chosen += turns[:limit]
    return chosen


def read_set(settings: Settings, field: str, name: str, limit: int | None = None) -> list[Turn]:
    """The turns of a data set's `train` or `test` file.

    Raises:
        InputError: a file is missing, or something in it is not usable.
    """
    path, qrels = data_file(settings, field, name), qrels_file(settings, field, name)
    if settings.data.format in READERS:
        turns = READERS[settings.data.format](path, qrels)[:limit]
    else:
        turns = read_turns(path, limit)
    return [replace(turn, dataset=name) for turn in turns] if name else turns


def held_out(settings: Settings, name: str) -> tuple[float, float]:
    """The shares of a `train` file's conversations that are kept out of training: for testing, for development."""
    test_share = settings.data.test_share if file_with(settings, "test", name) == "train" else None
    return test_share or 0.0, settings.data.development_share


def part_of(turns: Sequence[Turn], split: str, test_share: float, development_share: float) -> list[Turn]:
    """The turns of one split of a file: whole conversations, first training, then development, then test.

    Args:
        turns: of the file; a conversation stands where its first turn does.
        split: `train`, `development` or `test`.
        test_share: share of the conversations.
        development_share: share of those that are not for testing.
    """
    conversations = list(dict.fromkeys(turn.group for turn in turns))
    test = len(conversations) - rounded_up(test_share * len(conversations))
    development = test - rounded_up(development_share * test)
    start, end = {"train": (0, development), "development": (development, test), "test": (test, None)}[split]
    members = set(conversations[start:end])
    return [turn for turn in turns if turn.group in members]


def rounded_up(number: float) -> int:
    """The next whole number, where less than a hundredth counts for nothing: 0.3334 of 27, 9.0018, is 9."""
    return max(1, math.ceil(number - 0.01)) if number else 0


def turns_hash(settings: Settings, split: str) -> str | dict[str, Any]:
    """What a stage records of the turns that it reads: SHA-256 of all files that they come from.

    Returns:
        One hash; with `data.sets` one for each set that has turns of the split. Where turns of these files are held
        out, the hashes are `files`, beside the shares.
    """
    check_files(settings, split)
    hashes = {}
    for name in sets_with(settings, split):
        field = file_with(settings, split, name)
        files, qrels = [data_file(settings, field, name)], qrels_file(settings, field, name)
        if qrels is not None:
            files += [qrels, *(mtrag.rewrite_files(qrels) if settings.data.format == "mtrag" else [])]
        hashes[name] = sha256(*files)
    data, shares = settings.data, {}
    if data.test_share is not None:
        shares["test_share"] = data.test_share
    if data.development_share and split != "test":
        shares["development_share"] = data.development_share
    return {"files": by_set(hashes)} | shares if shares else by_set(hashes)


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
