"""What the readers of published data sets share: checked fields of records, gold passages."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.artifacts import read_json_lines
from core.errors import InputError, short
from core.records import Message, Turn
from core.trec import read_qrels

Gold = dict[tuple[int, int], dict[str, int]]  # (conversation, turn) -> document -> grade
NUMBERS = re.compile(r"(\d+)[_-](\d+)$")  # of the query ids `12_3`, `12-3` and `QReCC-Test_12_3`


@dataclass(frozen=True)
class FieldReader:
    """A record of a published file. Each method checks a field; an error begins with `place`."""

    place: str
    values: dict[str, Any]

    def refuse(self, name: str, expected: str) -> None:
        """Raise for a field.

        Raises:
            InputError: always; names the place, the field, what was expected and what is there.
        """
        if name not in self.values:
            raise InputError(f"{self.place}: the field `{name}` is missing; expected {expected}.")
        raise InputError(f"{self.place}: `{name}` must be {expected}, got {short(self.values[name])}.")

    def text(self, name: str, empty: bool = False) -> str:
        """A text without blanks around it; with `empty`, it may be empty."""
        value = self.values.get(name)
        if not isinstance(value, str) or not (value.strip() or empty):
            self.refuse(name, "a text" if empty else "a text that is not empty")
        return value.strip()

    def number(self, name: str) -> int:
        """A whole number, as a number or in digits."""
        value = self.values.get(name)
        if isinstance(value, str) and value.isdecimal():
            return int(value)
        if type(value) is not int:
            self.refuse(name, "a whole number")
        return value

    def texts(self, name: str) -> list[str]:
        """A list of texts."""
        value = self.values.get(name)
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            self.refuse(name, "a list of texts")
        return value

    def objects(self, name: str) -> list["FieldReader"]:
        """A list of objects."""
        value = self.values.get(name)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            self.refuse(name, "a list of objects")
        return [FieldReader(f"{self.place}, `{name}` {number}", item) for number, item in enumerate(value, 1)]


def read_records(path: Path) -> Iterator[FieldReader]:
    """The records of a published file: one JSON list, or one JSON object a line.

    Raises:
        InputError: the file is no JSON, or holds something else than objects (names file and line or record).
    """
    if first_character(path) != "[":
        for line, record in read_json_lines(path):
            yield FieldReader(f"{path}:{line}", record)
        return
    try:
        records = json.loads(text_of(path))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}: not valid JSON: {error.msg} at column {error.colno}.") from error
    except RecursionError as error:
        raise InputError(f"{path}: cannot be read as JSON: {error}.") from error
    for number, record in enumerate(records, 1):
        place = f"{path}: record {number}"
        if not isinstance(record, dict):
            raise InputError(f"{place}: expected a JSON object, got {short(record)}.")
        try:
            json.dumps(record, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise InputError(f"{place}: half a character (a lone surrogate) in a text.") from error
        yield FieldReader(place, record)


def first_character(path: Path) -> str:
    """The first character of a file that is not white space; empty where there is none."""
    with path.open("rb") as handle:
        return handle.read(1 << 12).removeprefix(b"\xef\xbb\xbf").lstrip()[:1].decode("latin-1")


def text_of(path: Path) -> str:
    """The text of a file.

    Raises:
        InputError: it is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start}: {error.reason}).") from error


def dialogue(record: FieldReader, name: str) -> tuple[Message, ...]:
    """Messages from a list `[question, answer, question, answer, ...]`; an empty answer is left out.

    Raises:
        InputError: the list does not end with an answer, or a question in it is empty.
    """
    texts = record.texts(name)
    if len(texts) % 2 or not all(text.strip() for text in texts[::2]):
        record.refuse(name, "a list of texts, question and answer by turns")
    roles = ("user", "assistant")
    return tuple({"role": roles[i % 2], "content": text} for i, text in enumerate(texts) if text.strip())


def collect_turns(path: Path, pairs: Iterable[tuple[FieldReader, Turn]]) -> list[Turn]:
    """The turns of a file, in its order.

    Args:
        path: the file, for the message.
        pairs: each record with its turn.

    Raises:
        InputError: an id stands twice, or there is no turn.
    """
    turns: dict[str, Turn] = {}
    for record, turn in pairs:
        if turn.id in turns:
            raise InputError(f"{record.place}: the turn `{turn.id}` stands twice; a file holds each turn once.")
        turns[turn.id] = turn
    if not turns:
        raise InputError(f"{path}: no turns in it.")
    return list(turns.values())


def read_gold(path: Path, gold_of: Callable[[FieldReader], tuple[tuple[int, int], dict[str, int]]]) -> Gold:
    """Gold passages by conversation and turn, from a JSON file of the data set or from qrels.

    Args:
        path: JSON, or qrels whose query ids end in `<conversation>_<turn>` or `<conversation>-<turn>`.
        gold_of: what a JSON record says.

    Raises:
        InputError: a record or a line is not usable.
    """
    gold: Gold = {}
    if first_character(path) in ("[", "{"):
        for record in read_records(path):
            key, documents = gold_of(record)
            gold.setdefault(key, {}).update(documents)
        return gold
    for query, documents in read_qrels(path).items():
        numbers = NUMBERS.search(query)
        if numbers is None:
            raise InputError(f"{path}: the query id `{query}` does not end in `<conversation>_<turn>`.")
        gold[int(numbers[1]), int(numbers[2])] = documents
    return gold


def check_overlap(turns: list[Turn], path: Path, qrels: Path | None) -> list[Turn]:
    """The turns, when a file of gold passages is there and belongs to them.

    Raises:
        InputError: it has a passage for none of them.
    """
    if qrels is not None and not any(turn.relevant for turn in turns):
        raise InputError(
            f"{qrels} has no gold passage for any turn of {path} (its first is `{turns[0].id}`); "
            "are they of the same split and release?"
        )
    return turns
