"""QReCC (Anantha et al., 2021, arXiv 2010.04898) as it is published, in both of its releases.

`qrecc_train.json` and `qrecc_test.json` of `apple/ml-qrecc` (`dataset/qrecc_data.zip`), a JSON list:
`Conversation_no`, `Turn_no`, `Question`, `Context` (questions and answers before, by turns), `Rewrite`, `Answer`. They
name no gold passage.

`scai-qrecc21-training-turns.json` and `scai-qrecc21-test-turns.json` of SCAI-QReCC (zenodo.org/records/5543685): the
same turns with `Truth_rewrite`, `Truth_answer` and `Truth_passages`, ids of the passages of `passages.zip`. `Context`
is not in every copy; it is then put together from the turns before. SCAI numbers the turns of a conversation without
gaps, Apple's files skip a few: gold passages are therefore found by the number of questions before, not by `Turn_no`.
"""

from pathlib import Path

from core.errors import InputError
from core.records import Message, Turn
from rewriter.datasets.field_reader import (
    FieldReader,
    Gold,
    check_overlap,
    collect_turns,
    dialogue,
    read_gold,
    read_records,
)


def read(path: Path, qrels: Path | None = None) -> list[Turn]:
    """The turns of a QReCC file.

    Args:
        path: `qrecc_*.json` or `scai-qrecc21-*-turns.json`.
        qrels: gold passages: a file of SCAI-QReCC, or TREC qrels made from one; without it, the file's own.

    Raises:
        InputError: a record is not usable; names file, record, field and value.
    """
    gold = read_gold(qrels, gold_of) if qrels else {}
    so_far: dict[int, list[Message]] = {}
    turns = ((record, turn_of(record, gold, so_far)) for record in read_records(path))
    return check_overlap(collect_turns(path, turns), path, qrels)


def turn_of(record: FieldReader, gold: Gold, so_far: dict[int, list[Message]]) -> Turn:
    """One turn. Its answer is also its reply: the assistant says it in the turns that follow.

    Args:
        record: as published.
        gold: gold passages from a file of their own.
        so_far: conversation -> its messages up to here; the turn's own are added.
    """
    of_scai = "Truth_rewrite" in record.values
    conversation, number = record.number("Conversation_no"), record.number("Turn_no")
    question, answer = record.text("Question"), record.text("Truth_answer" if of_scai else "Answer", empty=True)
    before = so_far.setdefault(conversation, [])
    if "Context" in record.values:
        history = dialogue(record, "Context")
    else:
        history = tuple(before)
        if sum(message["role"] == "user" for message in history) != number - 1:
            raise InputError(
                f"{record.place}: turn {number} of conversation {conversation} has no `Context`, and the turns before "
                "it are not in the file in their order; use the whole file."
            )
    before.append({"role": "user", "content": question})
    if answer:
        before.append({"role": "assistant", "content": answer})
    question_number = 1 + sum(message["role"] == "user" for message in history)
    own = record.texts("Truth_passages") if "Truth_passages" in record.values else []
    return Turn(
        id=f"{conversation}_{number}",
        history=history,
        question=question,
        answers=(answer,) if answer else (),
        relevant=gold.get((conversation, question_number)) or dict.fromkeys(own, 1),
        rewrite=record.text("Truth_rewrite" if of_scai else "Rewrite", empty=True) or None,
        conversation=str(conversation),
        kind="follow_up" if history else "first",
        reply=answer,
    )


def gold_of(record: FieldReader) -> tuple[tuple[int, int], dict[str, int]]:
    """Turn and gold passages of a record of SCAI-QReCC."""
    key = (record.number("Conversation_no"), record.number("Turn_no"))
    return key, dict.fromkeys(record.texts("Truth_passages"), 1)
