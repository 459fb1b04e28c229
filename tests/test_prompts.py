"""Prompts, and parsing a rewrite from a model's output."""

from dataclasses import replace

import pytest

from core.settings import RewriterSettings
from rewriter.prompts import INSTRUCTION, RewritePrompt, normalized, read_rewrite, search_query
from scoring.prompts import ABSTAIN, ANSWER, SYSTEM, answer_messages

HISTORY = [{"role": "user", "content": "Who made it?"}, {"role": "assistant", "content": "Ann Lee"}]


def test_rewrite_prompt():
    system, user = RewritePrompt().messages(HISTORY, "Where was she born?")
    assert system == {"role": "system", "content": INSTRUCTION}
    assert user == {"role": "user", "content": "User: Who made it?\nAssistant: Ann Lee\nUser: Where was she born?"}


def test_rewrite_prompt_with_examples_and_a_short_history():
    prompt = RewritePrompt("Rewrite.", (("User: And his?", "What is Al's?"),), history_messages=1, history_words=1)
    assert prompt.messages(HISTORY, "Where was she born?") == [
        {"role": "system", "content": "Rewrite."},
        {"role": "user", "content": "User: And his?"},
        {"role": "assistant", "content": "What is Al's?"},
        {"role": "user", "content": "Assistant: Ann\nUser: Where was she born?"},
    ]


def test_search_queries():
    assert search_query("Where?", "Where is it?", RewriterSettings()) == "Where is it?"
    joined = RewriterSettings(query="joined")
    assert search_query("Where?", "Where is it?", joined) == "Where? Where? Where is it?"
    assert search_query("Where?", "Where is it?", replace(joined, question_weight=1)) == "Where? Where is it?"


@pytest.mark.parametrize("instruction", [ANSWER, ABSTAIN])
def test_all_prompts_of_a_turn_begin_alike(instruction):
    grounded = answer_messages(HISTORY, "Where?", ["First text.", "Second text."], instruction)
    bare = answer_messages(HISTORY, "Where?", [], instruction)
    assert grounded[:-1] == bare[:-1] == [{"role": "system", "content": SYSTEM}, *HISTORY]
    documents = "Documents:\n[1] First text.\n[2] Second text."
    assert grounded[-1] == {"role": "user", "content": f"{instruction}\n\n{documents}\n\nQuestion: Where?"}
    assert bare[-1] == {"role": "user", "content": f"{instruction}\n\nQuestion: Where?"}


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


def test_normalized_merges_equivalent_queries():
    assert normalized("Where was Ann  LEE born?") == normalized("where was ann lee born")
    assert normalized("Where was Ann born?") != normalized("When was Ann born?")
