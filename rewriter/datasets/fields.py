"""Field types, gold passages and checks, shared by the readers of data sets."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, StringConstraints

from core.errors import InputError
from core.records import Message, Turn
from core.trec import read_qrels

Key = tuple[int, int]  # conversation, turn
Gold = dict[Key, dict[str, int]]  # grades of documents
NUMBERS = re.compile(r"(\d+)[_-](\d+)$")  # in the query ids `12_3`, `12-3` and `QReCC-Test_12_3`


def to_messages(texts: list[str]) -> tuple[Message, ...]:
    """Convert `[question, answer, question, answer, ...]` to messages; empty answers are omitted."""
    if len(texts) % 2 or not all(text.strip() for text in texts[::2]):
        raise ValueError("a list of alternating questions and answers")
    roles = ("user", "assistant")
    return tuple({"role": roles[i % 2], "content": text} for i, text in enumerate(texts) if text.strip())


Text = Annotated[str, StringConstraints(strip_whitespace=True)]
FilledText = Annotated[Text, StringConstraints(pattern=r"\S")]
Dialogue = Annotated[list[str], AfterValidator(to_messages)]


def read_gold(path: Path | None, read_json: Callable[[Path], Gold]) -> Gold:
    """Read gold passages by conversation and turn; empty if `path` is None.

    Args:
        path: JSON, or qrels whose query ids end in `<conversation>_<turn>` or `<conversation>-<turn>`.
        read_json: function that reads a JSON file of the data set.

    Raises:
        InputError: a record or a line is invalid.
    """
    if path is None:
        return {}
    if path.suffix in (".json", ".jsonl"):
        return read_json(path)
    gold: Gold = {}
    for query, documents in read_qrels(path).items():
        numbers = NUMBERS.search(query)
        if numbers is None:
            raise InputError(f"{path}: the query id `{query}` does not end in `<conversation>_<turn>`.")
        gold[int(numbers[1]), int(numbers[2])] = documents
    return gold


def check_overlap(turns: list[Turn], path: Path, qrels: Path | None) -> list[Turn]:
    """Return the turns; raises InputError if the file of gold passages has none for any of them."""
    if qrels is not None and not any(turn.relevant for turn in turns):
        raise InputError(
            f"{qrels} has no gold passage for any turn of {path} (first turn: `{turns[0].id}`); "
            "are both files from the same split and release?"
        )
    return turns


def unique_turns(path: Path, turns: Iterable[tuple[str, Turn]]) -> list[Turn]:
    """Turns from (place, turn) pairs of a file; raises InputError for a repeated id or if there is no turn."""
    by_id: dict[str, Turn] = {}
    for place, turn in turns:
        if turn.id in by_id:
            raise InputError(f"{place}: the id `{turn.id}` is repeated; ids of turns must be unique.")
        by_id[turn.id] = turn
    if not by_id:
        raise InputError(f"{path}: no turns in the file; docs/data.md describes the format.")
    return list(by_id.values())
