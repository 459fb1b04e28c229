"""QReCC (Anantha et al., 2021, arXiv 2010.04898) in its two published releases.

`qrecc_train.json` and `qrecc_test.json` of `apple/ml-qrecc` (`dataset/qrecc_data.zip`): JSON lists without gold
passages.

`scai-qrecc21-training-turns.json` and `scai-qrecc21-test-turns.json` of SCAI-QReCC (zenodo.org/records/5543685): the
same turns with the ids of gold passages in `passages.zip`. If `Context` is missing, it is built from the previous
turns. SCAI numbers the turns of a conversation without gaps, but Apple's files skip a few. Gold passages are therefore
looked up by the number of previous questions, not by `Turn_no`.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import AliasChoices, Field

from core.errors import InputError
from core.json_records import read_records
from core.records import Message, Turn
from rewriter.datasets.fields import Dialogue, FilledText, Gold, Text, check_overlap, read_gold, unique_turns


@dataclass
class Record:
    """A turn; `Context` alternates the previous questions and answers. Names of SCAI start with `Truth_`."""

    Conversation_no: int
    Turn_no: int
    Question: FilledText
    Rewrite: Annotated[Text, Field(validation_alias=AliasChoices("Rewrite", "Truth_rewrite"))]
    Answer: Annotated[Text, Field(validation_alias=AliasChoices("Answer", "Truth_answer"))]
    Context: Dialogue | None = None
    Truth_passages: list[str] = field(default_factory=list)


def read(path: Path, qrels: Path | None = None) -> list[Turn]:
    """Read the turns of a QReCC file.

    Args:
        path: `qrecc_*.json` or `scai-qrecc21-*-turns.json`.
        qrels: gold passages: a file of SCAI-QReCC, or TREC qrels made from one; by default those in `path`.

    Raises:
        InputError: a record is invalid; the message names file, record, field and value.
    """
    gold = read_gold(qrels, gold_of)
    return check_overlap(unique_turns(path, turns_of(path, gold)), path, qrels)


def gold_of(path: Path) -> Gold:
    """Read the gold passages in a file of SCAI-QReCC."""
    records = (record for _, record in read_records(Record, path))
    return {(record.Conversation_no, record.Turn_no): dict.fromkeys(record.Truth_passages, 1) for record in records}


def turns_of(path: Path, gold: Gold) -> Iterator[tuple[str, Turn]]:
    """Yield the place and turn of each record. Its answer is also its reply, as in the history of later turns."""
    messages_of: dict[int, list[Message]] = defaultdict(list)  # conversation -> its messages so far
    for place, record in read_records(Record, path):
        conversation, answer = record.Conversation_no, record.Answer
        history = tuple(messages_of[conversation]) if record.Context is None else record.Context
        questions = sum(message["role"] == "user" for message in history)
        if record.Context is None and questions != record.Turn_no - 1:
            raise InputError(
                f"{place}: turn {record.Turn_no} of conversation {conversation} has no `Context`, and the previous "
                "turns are missing or out of order; use the complete file."
            )
        messages_of[conversation].append({"role": "user", "content": record.Question})
        if answer:
            messages_of[conversation].append({"role": "assistant", "content": answer})
        turn = Turn(
            id=f"{conversation}_{record.Turn_no}",
            history=history,
            question=record.Question,
            answers=(answer,) if answer else (),
            relevant=gold.get((conversation, questions + 1)) or dict.fromkeys(record.Truth_passages, 1),
            rewrite=record.Rewrite or None,
            conversation=str(conversation),
            kind="follow_up" if history else "first",
            reply=answer,
        )
        yield place, turn
