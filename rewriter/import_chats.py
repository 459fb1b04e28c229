"""Convert chat logs to turns for training: one turn per user question, with the assistant's reply.

    python -m rewriter.import_chats --from chats.jsonl --output turns.jsonl

Reads JSONL, one conversation per line, or a JSON file with a list of conversations. A conversation is a list of
messages, or an object with this list as `messages` (OpenAI), `conversations` (ShareGPT) or `conversation`. A message
has `role` or `from` (user, human; assistant, gpt, bot, model, chatgpt) and `content`, `value` or `text`. System, tool
and developer messages are ignored. The id of a conversation is `id` or `conversation_id`, or else its line number.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BeforeValidator, Field

from core.artifacts import json_value, read_json_texts
from core.cli import parse_flags, run_command
from core.errors import InputError, short
from core.json_records import parse_record, write_records
from core.progress import log, set_up_logging
from core.records import Identifier, Turn
from core.schema import Validated

ROLES = {
    "user": "user", "human": "user", "prompter": "user",
    "assistant": "assistant", "gpt": "assistant", "bot": "assistant", "model": "assistant", "chatgpt": "assistant",
    "system": "", "developer": "", "tool": "", "function": "", "function_call": "", "observation": "",
}  # fmt: skip
MESSAGES = ("messages", "conversations", "conversation")


def known_role(role: Any) -> str:
    """`user`, `assistant`, or an empty string if the message is to be ignored."""
    if str(role).lower() not in ROLES:
        raise ValueError(f"one of {', '.join(ROLES)}")
    return ROLES[str(role).lower()]


def plain_text(content: Any) -> Any:
    """Join the text parts of OpenAI's multi-part content (text, images, ...); strip a content that is one string."""
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict) and part.get("type", "text") == "text"]
        content = "\n".join(str(part.get("text", "")) for part in parts)
    return content.strip() if isinstance(content, str) else content or ""


@dataclass
class LoggedMessage:
    """A message of a log."""

    role: Annotated[str, BeforeValidator(known_role), Field(validation_alias=AliasChoices("role", "from"))]
    content: Annotated[
        str, BeforeValidator(plain_text), Field(validation_alias=AliasChoices("content", "value", "text"))
    ] = ""


@dataclass
class Conversation:
    """A conversation of a log."""

    messages: Annotated[list[LoggedMessage], Field(validation_alias=AliasChoices(*MESSAGES))]
    id: Annotated[Identifier, BeforeValidator(str), Field(validation_alias=AliasChoices("id", "conversation_id"))] = ""

    def turns(self, name: str) -> Iterator[Turn]:
        """Yield a turn for each question; consecutive messages of one role are joined."""
        groups = groupby((m for m in self.messages if m.role and m.content), key=attrgetter("role"))
        messages = [{"role": role, "content": "\n".join(m.content for m in group)} for role, group in groups]
        questions = [i for i, message in enumerate(messages) if message["role"] == "user"]
        for count, i in enumerate(questions, 1):
            reply = messages[i + 1]["content"] if i + 1 < len(messages) else ""
            history, question = tuple(messages[:i]), messages[i]["content"]
            yield Turn(f"{name}_{count}", history, question, conversation=name, reply=reply)


@dataclass(kw_only=True)
class ImportFlags(Validated):
    """Flags of the command.

    Args:
        from_: chat log: JSONL, one conversation per line, or a JSON list.
        output: file for the turns.
        on_bad: `stop` at a conversation that cannot be read, or `skip` and count such conversations.
    """

    from_: Path
    output: Path = Path("turns.jsonl")
    on_bad: Literal["stop", "skip"] = "stop"


def main(argv: list[str] | None = None) -> None:
    flags = parse_flags(ImportFlags, __doc__, argv)
    set_up_logging()
    turns: list[Turn] = []
    names: set[str] = set()
    skipped = 0
    for number, place, text in read_json_texts(flags.from_):
        try:
            conversation = read_conversation(text, place)
            name = conversation.id or f"chat{number}"
            if name in names:
                raise InputError(f"{place}: the conversation id {short(name)} is repeated; ids must be unique.")
            names.add(name)
            turns += conversation.turns(name)
        except InputError as error:
            if flags.on_bad == "stop":
                raise InputError(f"{error} `--on_bad skip` skips such conversations.") from error
            skipped += 1
            log.warning("skipped: %s", error)
    if not turns:
        raise InputError(f"{flags.from_}: no user question in the file; `--help` describes the format.")
    write_records(flags.output, turns)
    log.info(
        "%d turns of %d conversations (%d without a reply, %d conversations skipped) -> %s",
        len(turns), len(names), sum(not turn.reply for turn in turns), skipped, flags.output,
    )  # fmt: skip
    log.info("to train on them: accelerate launch train/dpo.py --config configs/own_data.yaml --data.train %s "
             "--data.corpus corpus.jsonl", flags.output)  # fmt: skip


def read_conversation(text: str, place: str) -> Conversation:
    """Parse a conversation; an invalid one raises an InputError with place, field and value."""
    value = json_value(text, place)
    record = value if isinstance(value, dict) else {"messages": value}
    record = {name: content for name, content in record.items() if content != ""}  # an empty id counts as missing
    if not any(name in record for name in MESSAGES):
        raise InputError(f"{place}: a conversation needs one of {', '.join(MESSAGES)}; it has {', '.join(record)}.")
    return parse_record(Conversation, record, place)


if __name__ == "__main__":
    run_command(main)
