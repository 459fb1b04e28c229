"""TopiOCQA (Adlakha et al., 2022, arXiv 2110.00768), as published: conversations that change their topic.

Turns: `topiocqa_train.json` and `topiocqa_dev.json` of the project page (mcgill-nlp.github.io/topiocqa), a JSON list,
or `data/topiocqa_train.jsonl` and `data/topiocqa_valid.jsonl` of the Hub's `McGill-NLP/TopiOCQA`.

Gold passages: `data/gold_passages_info/topiocqa_*_{train,dev}.json` of `download_data.py` in `McGill-NLP/topiocqa`, a
JSON list, or TREC qrels. Passage ids are those of the collection, `full_wiki_segments.tsv`; the prefix `wiki:`, which
the code of TopiOCQA adds when it reads the collection, is removed.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import AliasChoices, Field

from core.json_records import read_records
from core.records import Turn
from rewriter.datasets.fields import Dialogue, FilledText, Gold, Key, Text, check_overlap, read_gold, unique_turns

UNANSWERABLE = "UNANSWERABLE"  # the answer if the collection contains none


@dataclass
class GoldPassage:
    """A passage: `id` in a file of turns, `passage_id` in a file of gold passages."""

    id: Annotated[FilledText, Field(validation_alias=AliasChoices("passage_id", "id"), coerce_numbers_to_str=True)]

    @property
    def document(self) -> str:
        return self.id.strip().removeprefix("wiki:")


@dataclass
class AdditionalAnswer:
    """The answer of another annotator (dev)."""

    Answer: Text


@dataclass
class Record:
    """A turn; `Context` alternates the previous questions and answers."""

    Conversation_no: int
    Turn_no: int
    Question: FilledText
    Context: Dialogue
    Answer: Text
    Topic: FilledText
    Additional_answers: list[AdditionalAnswer] = field(default_factory=list)
    Gold_passage: GoldPassage | None = None

    @property
    def key(self) -> Key:
        return self.Conversation_no, self.Turn_no


@dataclass
class GoldRecord:
    """The gold passages of a turn; only the first one is used."""

    conv_id: int
    turn_id: int
    positive_ctxs: list[GoldPassage]


def read(path: Path, qrels: Path | None = None) -> list[Turn]:
    """Read the turns of a TopiOCQA file.

    `kind` depends on the topic: `first`, `follow_up` (the topic of the previous turn), `return` (a topic from earlier
    in the conversation), `switch` (a new topic). `UNANSWERABLE` is not used as an answer. There are no rewrites.

    Args:
        path: `topiocqa_*.json` or the Hub's `.jsonl`.
        qrels: gold passages; by default those of `Gold_passage`, if the file has them.

    Raises:
        InputError: a record is invalid; the message names file, record or line, field and value.
    """
    gold = read_gold(qrels, gold_of)
    records = list(read_records(Record, path))
    kinds = kinds_of([record for _, record in records])
    turns = [(place, to_turn(record, gold.get(record.key), kinds[record.key])) for place, record in records]
    return check_overlap(unique_turns(path, turns), path, qrels)


def gold_of(path: Path) -> Gold:
    """Read the gold passages in a file of `gold_passages_info`."""
    records = (record for _, record in read_records(GoldRecord, path))
    return {(r.conv_id, r.turn_id): {passage.document: 1 for passage in r.positive_ctxs[:1]} for r in records}


def to_turn(record: Record, relevant: dict[str, int] | None, kind: str) -> Turn:
    """Convert a record to a turn. Its reply is `Answer`, as in the history of later turns."""
    answers = [record.Answer, *(answer.Answer for answer in record.Additional_answers)]
    default = {record.Gold_passage.document: 1} if record.Gold_passage else {}
    return Turn(
        id=f"{record.Conversation_no}_{record.Turn_no}",
        history=record.Context,
        question=record.Question,
        answers=tuple(dict.fromkeys(answer for answer in answers if answer not in ("", UNANSWERABLE))),
        relevant=relevant or default,
        conversation=str(record.Conversation_no),
        kind=kind,
        reply="" if record.Answer == UNANSWERABLE else record.Answer,
    )


def kinds_of(records: Sequence[Record]) -> dict[Key, str]:
    """The kind of each turn, from the topics of its conversation so far."""
    topics: dict[int, list[str]] = defaultdict(list)
    kinds = {}
    for record in sorted(records, key=lambda record: record.key):
        seen = topics[record.Conversation_no]
        if record.Turn_no == 1:
            kind = "first"
        elif not seen or record.Topic == seen[-1]:
            kind = "follow_up"
        else:
            kind = "return" if record.Topic in seen else "switch"
        kinds[record.key] = kind
        seen.append(record.Topic)
    return kinds
