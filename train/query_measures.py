"""Measures of a system's queries: length, added words, and how many equal the question.

With the reward and the labels, they help to tell an improved rewriter from one that exploits the reward
(`train/report`).
"""

import re
from collections.abc import Sequence
from statistics import fmean

from core.records import SystemResult, Turn
from rewriter.prompts import normalized

MEASURES = {
    "words": "words in the query",
    "new_words": "share of its words that are not in the conversation",
    "answer_words": "share of its words that are in the generator's answer but not in the conversation",
    "repeated_words": "share of its words that repeat an earlier word of the query",
    "same_as_question": "share of queries that equal the question",
    "distinct": "share of distinct queries among all queries",
}


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def measure_query(turn: Turn, result: SystemResult) -> dict[str, float]:
    """Compute `MEASURES`, except `distinct`, for one query; of a joined query, only for the rewrite."""
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
    """Compute `MEASURES` as means over the queries of a system. Needs at least one turn."""
    rows = [measure_query(turn, result) for turn, result in zip(turns, results, strict=True)]
    distinct = len({normalized(result.rewrite or result.query) for result in results}) / len(results)
    return {name: fmean(row[name] for row in rows) for name in rows[0]} | {"distinct": distinct}
