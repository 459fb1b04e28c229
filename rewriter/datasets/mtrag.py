"""MTRAG (Katsis et al., 2025, doi 10.1162/TACL.a.19) as published in `IBM/mt-rag-benchmark`.

Turns: `mtrag-human/generation_tasks/reference.jsonl`, one task per line. Its `contexts` are retrieved passages, not
labels.

Gold passages: `mtrag-human/retrieval_tasks/<domain>/qrels/dev.tsv` in BEIR's format (`query-id`, `corpus-id`,
`score`), whose query ids are task ids. Rewrites: `mtrag-human/retrieval_tasks/<domain>/<domain>_rewrite.jsonl`,
written by a model.

Passages: `corpora/passage_level/<domain>.jsonl.zip`. The gold passages have these ids, not those of
`corpora/document_level`.
"""

import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from core.errors import InputError, first_line
from core.json_records import read_records
from core.records import Passage, Turn
from core.trec import read_qrels
from rewriter.datasets.fields import FilledText, Text, unique_turns

# Errors of damaged and encrypted archives.
READING_ERRORS = (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
ROLES = {"user": "user", "agent": "assistant"}
ANSWERED = {"ANSWERABLE", "PARTIAL"}  # other targets say that there is no answer, or are small talk


@dataclass
class InputMessage:
    """A message of a conversation."""

    speaker: Literal["user", "agent"]
    text: FilledText


def check_input(messages: list[InputMessage]) -> list[InputMessage]:
    if not messages or messages[-1].speaker != "user":
        raise ValueError("messages that end with the user's question")
    return messages


@dataclass
class Target:
    """An answer."""

    text: Text


@dataclass
class Task:
    """A turn: `input` is the conversation, question last; `task_id` has the form `<conversation><::><turn>`."""

    task_id: FilledText
    conversation_id: FilledText
    turn: int
    Collection: FilledText
    input: Annotated[list[InputMessage], AfterValidator(check_input)]
    targets: list[Target]
    Answerability: list[str] = field(default_factory=lambda: ["ANSWERABLE"])


@dataclass
class Entry:
    """A passage, whose text starts with its title and may be empty, or a rewrite, whose text starts with `|user|:`."""

    id: Annotated[FilledText, Field(alias="_id")]
    text: Text
    title: Text = ""


def read(path: Path, qrels: Path | None = None) -> list[Turn]:
    """Read the turns of MTRAG.

    Args:
        path: `reference.jsonl`.
        qrels: `<domain>/qrels/dev.tsv`: only the turns of this domain are read, and the rewrites beside it; without
            it, all four domains without gold passages.

    Raises:
        InputError: a line is invalid (names file, line, field, value), or the two files do not belong together.
    """
    tasks = list(read_records(Task, path))
    gold, rewrites = {}, {}
    if qrels:
        gold, rewrites = read_qrels(qrels), read_rewrites(qrels)
        domain = {task.Collection for _, task in tasks if task.task_id in gold}
        if not domain:
            raise InputError(
                f"{qrels} has no judgment for any task of {path}: its first query id is `{next(iter(gold))}`, but "
                "task ids have the form `<conversation><::><turn>`; use two files from one commit of the repository."
            )
        tasks = [(place, task) for place, task in tasks if task.Collection in domain]
    turns = ((place, to_turn(task, gold.get(task.task_id, {}), rewrites.get(task.task_id))) for place, task in tasks)
    return unique_turns(path, turns)


def to_turn(task: Task, relevant: dict[str, int], rewrite: str | None) -> Turn:
    """Convert a task to a turn. Its reply is the target: the assistant's reply, corrected by reviewers, even if it is
    an apology."""
    messages = [{"role": ROLES[message.speaker], "content": message.text} for message in task.input]
    targets = [target.text for target in task.targets]
    return Turn(
        id=f"{task.conversation_id}_{task.turn}",
        history=tuple(messages[:-1]),
        question=messages[-1]["content"],
        answers=tuple(filter(None, targets)) if ANSWERED.intersection(task.Answerability) else (),
        relevant=relevant,
        rewrite=rewrite or None,
        conversation=task.conversation_id,
        kind="follow_up" if messages[1:] else "first",
        reply=targets[0] if targets else "",
    )


def rewrite_files(qrels: Path) -> list[Path]:
    """The file of rewrites in the folder of `<domain>/qrels`, if there is one."""
    return sorted(qrels.resolve().parents[1].glob("*_rewrite.jsonl"))[:1]


def read_rewrites(qrels: Path) -> dict[str, str]:
    """Read the rewrites of a domain: task id -> rewrite."""
    records = (record for path in rewrite_files(qrels) for _, record in read_records(Entry, path))
    return {record.id: record.text.removeprefix("|user|:").strip() for record in records}


def read_passages(path: Path) -> Iterator[Passage]:
    """Yield the passages of a domain in the order of the file.

    Args:
        path: the published `<domain>.jsonl.zip`, or the file in it.

    Raises:
        InputError: the file cannot be read, or a line is invalid (names file, line, field, value).
    """
    try:
        for _, record in read_records(Entry, passage_file(path)):
            yield Passage(record.id, record.text, record.title)
    except READING_ERRORS as error:
        raise InputError(f"{path}: cannot be read ({first_line(error)}); download it again.") from error


def passage_file(path: Path) -> Path | zipfile.Path:
    """The JSONL file in a zip archive; the path itself if it is no archive."""
    if not zipfile.is_zipfile(path):
        return path
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if Path(name).suffix in (".jsonl", ".json")]
    names = [name for name in names if not name.startswith("__MACOSX/")]  # added by macOS
    if len(names) != 1:
        raise InputError(f"{path}: the archive must contain one .jsonl file, got {len(names)}.")
    return zipfile.Path(path, names[0])
