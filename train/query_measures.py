"""What the queries of a system look like: length, words that they add, and how many equal the question.

Together with the reward and the labels they distinguish a rewriter that has improved from one that has found a way to
raise its reward (`train/report`).
"""

import re
from collections.abc import Sequence
from statistics import fmean

from core.records import SystemResult, Turn
from rewriter.prompts import normalized

MEASURES = {
    "words": "words of the query",
    "new_words": "share of its words that are not in the conversation",
    "answer_words": "share of its words that are in the generator's answer and not in the conversation",
    "repeated_words": "share of its words that it has had before",
    "same_as_question": "share of the queries that equal the question",
    "distinct": "distinct queries, as a share of all",
}


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def measure_query(turn: Turn, result: SystemResult) -> dict[str, float]:
    """The measures of `MEASURES` for one query, but for `distinct`; of the rewrite where it is not the whole query."""
    text = result.rewrite or result.query
    words = words_of(text)
    conversation = {*words_of(turn.question), *(w for m in turn.history for w in words_of(m["content"]))}
    new = [word for word in words if word not in conversation]
    answer = {*words_of(result.answer or "")}
    total = max(1, len(words))
    return {
        "words": float(len(words)),
        "new_words": len(new) / total,
        "answer_words": sum(word in answer for word in new) / total,
        "repeated_words": 1 - len({*words}) / total,
        "same_as_question": float(normalized(text) == normalized(turn.question)),
    }


def measure_queries(turns: Sequence[Turn], results: Sequence[SystemResult]) -> dict[str, float]:
    """The measures of `MEASURES`: means over the queries of a system for at least one turn."""
    rows = [measure_query(turn, result) for turn, result in zip(turns, results, strict=True)]
    distinct = len({normalized(result.rewrite or result.query) for result in results}) / len(results)
    return {name: fmean(row[name] for row in rows) for name in rows[0]} | {"distinct": distinct}
