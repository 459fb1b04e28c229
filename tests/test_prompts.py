"""Prompts, and reading a rewrite out of what a model says."""

import pytest

from rewriter.prompts import normalised, read_rewrite, rewrite_messages
from scoring.prompts import ABSTAIN, ANSWER, answer_messages

HISTORY = [{"role": "user", "content": "Who made it?"}, {"role": "assistant", "content": "Ann Lee"}]


def test_rewrite_prompt():
    system, user = rewrite_messages(HISTORY, "Where was she born?")
    assert system["role"] == "system"
    assert user == {"role": "user", "content": "User: Who made it?\nAssistant: Ann Lee\nUser: Where was she born?"}


def test_answer_prompt_with_and_without_documents():
    grounded = answer_messages(HISTORY, "Where?", ["First text.", "Second text."])
    bare = answer_messages(HISTORY, "Where?", [])
    assert grounded[0] == bare[0] == {"role": "system", "content": ANSWER}
    assert grounded[1]["content"] == "Documents:\n[1] First text.\n[2] Second text.\n\n" + bare[1]["content"]


def test_the_prompt_that_may_abstain_begins_with_the_history_and_ends_with_the_question():
    content = answer_messages(HISTORY, "Where?", ["A.", "B."], ABSTAIN)[1]["content"]
    assert content == (
        "Conversation:\nUser: Who made it?\nAssistant: Ann Lee\n\nDocuments:\n[1] A.\n[2] B.\n\nUser: Where?"
    )
    assert answer_messages([], "Where?", ["A."], ABSTAIN)[1]["content"] == "Documents:\n[1] A.\n\nUser: Where?"


def test_only_the_abstaining_prompt_offers_abstention():
    assert "NO-RESPONSE" in ABSTAIN and "NO-RESPONSE" not in ANSWER


@pytest.mark.parametrize(
    ("output", "query"),
    [
        ("Where was Ann Lee born?", "Where was Ann Lee born?"),
        (" Rewritten query: \"Where was Ann Lee born?\"\n", "Where was Ann Lee born?"),
        ("**Stand-alone question:** Where was Ann Lee born?", "Where was Ann Lee born?"),
        ("<think>She is Ann.\nSo</think>\n“Where was Ann Lee born?”", "Where was Ann Lee born?"),
        ("<think>never ends", ""),
        ("Where was\n  Ann Lee\tborn?", "Where was Ann Lee born?"),
        ("- Where was Ann Lee born?", "Where was Ann Lee born?"),
        ("1984 film: who directed it?", "1984 film: who directed it?"),
        ("\"\"", ""),
        (" ... ", ""),
    ],
)  # fmt: skip
def test_read_rewrite(output, query):
    assert read_rewrite(output) == query


def test_normalised_merges_what_a_retriever_cannot_tell_apart():
    assert normalised("Where was Ann  LEE born?") == normalised("where was ann lee born")
    assert normalised("Where was Ann born?") != normalised("When was Ann born?")
