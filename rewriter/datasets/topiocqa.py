"""TopiOCQA (Adlakha et al., 2022, arXiv 2110.00768) as it is published: conversations that change their topic.

Turns: `topiocqa_train.json` and `topiocqa_dev.json` of the project page (mcgill-nlp.github.io/topiocqa), a JSON list,
or `data/topiocqa_train.jsonl` and `data/topiocqa_valid.jsonl` of the Hub's `McGill-NLP/TopiOCQA`. FieldReader:
`Conversation_no`, `Turn_no`, `Question`, `Context` (questions and answers before, by turns), `Answer`, `Topic`,
`Additional_answers` (dev: a list of objects with `Answer`) and, on the Hub, `Gold_passage` with `id`.

Gold passages: `data/gold_passages_info/topiocqa_*_{train,dev}.json` of `download_data.py` in `McGill-NLP/topiocqa`, a
JSON list with `conv_id`, `turn_id` and `positive_ctxs`, whose first has a `passage_id`; or TREC qrels. A passage's id
is that of the collection, `full_wiki_segments.tsv`; the prefix `wiki:`, which the set's own code adds when it reads
the collection, is taken off.
"""

from pathlib import Path

from core.records import Turn
from rewriter.datasets.field_reader import (
    FieldReader,
    Gold,
    check_overlap,
    collect_turns,
    dialogue,
    read_gold,
    read_records,
)

UNANSWERABLE = "UNANSWERABLE"  # written as the answer where the collection has none


def read(path: Path, qrels: Path | None = None) -> list[Turn]:
    """The turns of a TopiOCQA file.

    `kind` follows the topic: `first`, `follow_up` (the topic of the turn before), `return` (one from earlier in the
    conversation), `switch` (a new one). `UNANSWERABLE` is no answer. The set has no rewrites.

    Args:
        path: `topiocqa_*.json` or the Hub's `.jsonl`.
        qrels: gold passages; without it, those of `Gold_passage` where the file has them.

    Raises:
        InputError: a record is not usable; names file, record or line, field and value.
    """
    gold = read_gold(qrels, gold_of) if qrels else {}
    records = list(read_records(path))
    kinds = kinds_of(records)
    return check_overlap(collect_turns(path, ((r, turn_of(r, gold, kinds)) for r in records)), path, qrels)


def turn_of(record: FieldReader, gold: Gold, kinds: dict[tuple[int, int], str]) -> Turn:
    """One turn. Its reply is `Answer`, which is what the assistant says in the turns that follow."""
    key = key_of(record)
    texts = [record.text("Answer", empty=True)]
    if record.values.get("Additional_answers"):
        texts += [answer.text("Answer", empty=True) for answer in record.objects("Additional_answers")]
    return Turn(
        id=f"{key[0]}_{key[1]}",
        history=dialogue(record, "Context"),
        question=record.text("Question"),
        answers=tuple(dict.fromkeys(answer for answer in texts if answer not in ("", UNANSWERABLE))),
        relevant=gold.get(key) or own_gold(record),
        conversation=str(key[0]),
        kind=kinds[key],
        reply="" if texts[0] == UNANSWERABLE else texts[0],
    )


def key_of(record: FieldReader) -> tuple[int, int]:
    return record.number("Conversation_no"), record.number("Turn_no")


def kinds_of(records: list[FieldReader]) -> dict[tuple[int, int], str]:
    """(conversation, turn) -> kind, by the topics of a conversation in the order of its turns."""
    topics: dict[int, dict[int, str]] = {}
    for record in records:
        conversation, turn = key_of(record)
        topics.setdefault(conversation, {})[turn] = record.text("Topic")
    kinds = {}
    for conversation, of_turn in topics.items():
        seen: list[str] = []
        for turn, topic in sorted(of_turn.items()):
            if turn == 1:
                kind = "first"
            elif not seen or topic == seen[-1]:
                kind = "follow_up"
            else:
                kind = "return" if topic in seen else "switch"
            kinds[conversation, turn] = kind
            seen.append(topic)
    return kinds


def own_gold(record: FieldReader) -> dict[str, int]:
    """The passage that the record itself names."""
    passage = record.values.get("Gold_passage")
    if passage is None:
        return {}
    if not isinstance(passage, dict):
        record.refuse("Gold_passage", "an object with `id`")
    return {passage_id(FieldReader(f"{record.place}, `Gold_passage`", passage), "id"): 1}


def gold_of(record: FieldReader) -> tuple[tuple[int, int], dict[str, int]]:
    """Turn and gold passage of a record of `gold_passages_info`."""
    passages = record.objects("positive_ctxs")
    key = (record.number("conv_id"), record.number("turn_id"))
    return key, {passage_id(passage, "passage_id"): 1 for passage in passages[:1]}


def passage_id(record: FieldReader, name: str) -> str:
    value = record.values.get(name)
    return str(value) if type(value) is int else record.text(name).removeprefix("wiki:")
