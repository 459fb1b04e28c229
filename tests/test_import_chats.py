"""`python -m rewriter.import_chats`: converts chat logs to turns."""

import json

import pytest

from rewriter.conversations import read_turns
from rewriter.import_chats import main
from tests.conftest import call, write_lines

OPENAI = {
    "id": "a",
    "messages": [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Who made Talpa?"},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "Ann Lee."}, {"type": "image_url"}],
        },
        {"role": "tool", "content": "42"},
        {"role": "user", "content": "Where was she born?"},
        {"role": "assistant", "content": "In Ghent."},
    ],
}
SHAREGPT = {"conversations": [{"from": "human", "value": "Hi"}, {"from": "human", "value": "Any owls?"},
                              {"from": "gpt", "value": "Many."}, {"from": "human", "value": "Where?"}]}  # fmt: skip


def turns_from(tmp_path, *records):
    output = call(main, "--from", write_lines(tmp_path / "chats.jsonl", records), "--output", tmp_path / "turns.jsonl")
    return read_turns(tmp_path / "turns.jsonl"), output


def test_openai_messages(tmp_path):
    turns, output = turns_from(tmp_path, OPENAI)
    assert [turn.id for turn in turns] == ["a_1", "a_2"] and {turn.group for turn in turns} == {"a"}
    first, second = turns
    assert (first.history, first.question, first.reply) == ((), "Who made Talpa?", "Ann Lee.")
    assert [message["content"] for message in second.history] == ["Who made Talpa?", "Ann Lee."]
    assert (second.question, second.reply) == ("Where was she born?", "In Ghent.")
    assert "2 turns of 1 conversations (0 without a reply, 0 conversations skipped)" in output
    assert "--config configs/own_data.yaml --data.train" in output


def test_names_of_conversations(tmp_path):
    records = [OPENAI | {"id": ""}, OPENAI | {"id": 7}, OPENAI | {"id": None, "conversation_id": "c"}]
    turns, _ = turns_from(tmp_path, *records)
    assert [turn.conversation for turn in turns[::2]] == ["chat1", "7", "c"]


def test_sharegpt_and_lists_of_messages(tmp_path):
    turns, output = turns_from(tmp_path, SHAREGPT, OPENAI["messages"])
    assert [turn.id for turn in turns] == ["chat1_1", "chat1_2", "chat2_1", "chat2_2"]
    assert turns[0].question == "Hi\nAny owls?" and turns[1].reply == "" and "1 without a reply" in output


def test_a_json_file_with_a_list(tmp_path):
    (tmp_path / "chats.json").write_text(json.dumps([SHAREGPT, OPENAI], indent=1))
    call(main, "--from", tmp_path / "chats.json", "--output", tmp_path / "turns.jsonl")
    assert [turn.id for turn in read_turns(tmp_path / "turns.jsonl")] == ["chat1_1", "chat1_2", "a_1", "a_2"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "chats.jsonl:2: not valid JSON"),
        (
            '{"text": "x"}',
            "chats.jsonl:2: a conversation needs one of messages, conversations, conversation",
        ),
        ('{"messages": "x"}', "chats.jsonl:2: `messages` must be a list, got 'x'"),
        ('{"messages": [{"role": "king", "content": "x"}]}', "chats.jsonl:2: `messages[0].role` must be one of user,"),
        (
            '{"messages": [{"role": "user", "content": 5}]}',
            ":2: `messages[0].content` must be a string, got 5",
        ),
        ('{"id": "a", "messages": []}', "chats.jsonl:2: the conversation id 'a' is repeated"),
        (
            '{"id": "b\\n", "messages": [{"role": "user", "content": "x"}]}',
            "a string without control characters",
        ),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', "chats.jsonl:2: a string contains half"),
    ],
)
def test_unreadable_conversations_are_named_or_skipped(tmp_path, line, expected):
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps(OPENAI) + "\n" + line + "\n")
    output = call(main, "--from", path, "--output", tmp_path / "turns.jsonl", ok=False)
    assert expected in output and "`--on_bad skip`" in output and not (tmp_path / "turns.jsonl").exists()
    output = call(main, "--from", path, "--output", tmp_path / "turns.jsonl", "--on_bad", "skip")
    assert "skipped: " in output and "1 conversations skipped" in output
    assert len(read_turns(tmp_path / "turns.jsonl")) == 2


def test_a_log_without_questions(tmp_path):
    path = write_lines(tmp_path / "chats.jsonl", [{"messages": [{"role": "assistant", "content": "Hello"}]}])
    assert "no user question in the file" in call(main, "--from", path, "--output", tmp_path / "t.jsonl", ok=False)
    assert "none.jsonl: cannot be read (No such file" in call(main, "--from", tmp_path / "none.jsonl", ok=False)
