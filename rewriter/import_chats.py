"""Turn logs of chats into turns for training: one for each question of a user, with the assistant's reply.

    python -m rewriter.import_chats --from chats.jsonl --output turns.jsonl

Reads JSONL, one conversation a line, or a JSON file with a list of conversations. A conversation is a list of
messages, or an object that has it as `messages` (OpenAI), `conversations` (ShareGPT) or `conversation`. A message has
`role` or `from` (user, human; assistant, gpt, bot, model, chatgpt) and `content`, `value` or `text`. Messages of
systems, tools and developers are left out. `id` or `conversation_id` names a conversation; without one, its line does.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from core.artifacts import write_atomic
from core.cli import parse_flags, run_command
from core.errors import InputError, short
from core.json_records import parse_record, to_json_dict
from core.progress import log, set_up_logging
from core.records import Turn
from core.schema import Validated

ROLES = {
    "user": "user", "human": "user", "prompter": "user",
    "assistant": "assistant", "gpt": "assistant", "bot": "assistant", "model": "assistant", "chatgpt": "assistant",
    "system": "", "developer": "", "tool": "", "function": "", "function_call": "", "observation": "",
}  # fmt: skip
MESSAGES, IDS = ("messages", "conversations", "conversation"), ("id", "conversation_id")
ROLE_FIELDS, TEXT_FIELDS = ("role", "from"), ("content", "value", "text")


@dataclass(kw_only=True)
class ImportFlags(Validated):
    """Flags of the command.

    Args:
        from_: log of chats: JSONL, one conversation a line, or a JSON list.
        output: file for the turns.
        on_bad: a conversation that cannot be read stops the command (`stop`), or is left out and counted (`skip`).
    """

    from_: Path
    output: Path = Path("turns.jsonl")
    on_bad: Literal["stop", "skip"] = "stop"


def main(argv: list[str] | None = None) -> None:
    flags = parse_flags(ImportFlags, __doc__, argv)
    set_up_logging()
    counts: Counter[str] = Counter()
    write_atomic(
        flags.output,
        (json.dumps(to_json_dict(turn), ensure_ascii=False) + "\n" for turn in import_turns(flags, counts)),
    )
    if not counts["turns"]:
        flags.output.unlink()
        raise InputError(
            f"{flags.from_}: no question of a user in it; see `--help` for what a conversation looks like."
        )
    log.info(
        "%d turns of %d conversations (%d without a reply, %d conversations left out) -> %s",
        counts["turns"], counts["conversations"], counts["without_reply"], counts["skipped"], flags.output,
    )  # fmt: skip
    log.info("to train on them: accelerate launch train/dpo.py --config configs/own_data.yaml --data.train %s "
             "--data.corpus corpus.jsonl", flags.output)  # fmt: skip


def import_turns(flags: ImportFlags, counts: Counter[str]) -> Iterator[Turn]:
    """The turns of a log of chats.

    Args:
        flags: of the command.
        counts: of `turns`, `conversations`, turns `without_reply` and conversations that were `skipped`; updated.

    Raises:
        InputError: the file or, with `on_bad: stop`, a conversation cannot be read.
    """
    names: Counter[str] = Counter()
    for place, number, read in conversations(flags.from_):
        try:
            name, messages = messages_of(read(), place)
            name = name or f"chat{number}"
            names[name] += 1
            if names[name] > 1:
                raise InputError(f"{place}: the conversation id {short(name)} is repeated; ids must be unique.")
            turns = list(turns_of(name, messages, place))
        except InputError as error:
            if flags.on_bad == "stop":
                raise InputError(f"{error} `--on_bad skip` leaves such conversations out.") from error
            counts["skipped"] += 1
            log.warning("left out: %s", error)
            continue
        counts.update(conversations=1, turns=len(turns), without_reply=sum(not turn.reply for turn in turns))
        yield from turns


def conversations(path: Path):
    """Place, number and reader of each conversation in a file.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        with path.open(encoding="utf-8") as handle:
            if handle.read(1) == "[" and path.suffix == ".json":
                handle.seek(0)
                for number, value in enumerate(load(handle.read(), str(path)), 1):
                    yield f"{path}: conversation {number}", number, lambda value=value: value
                return
            handle.seek(0)
            for number, line in enumerate(handle, 1):
                if line.strip():
                    place = f"{path}:{number}"
                    yield place, number, lambda line=line, place=place: load(line, place)
    except OSError as error:
        raise InputError(f"`--from`: {path} cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start}: {error.reason}).") from error


def load(text: str, place: str) -> Any:
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise InputError(f"{place}: not valid JSON: {error.msg} at column {error.colno}.") from error
    except (ValueError, RecursionError) as error:  # a lone surrogate, a number that is too long
        raise InputError(f"{place}: cannot be read as JSON: {error}.") from error
    return value


def messages_of(value: Any, place: str) -> tuple[str, list[dict[str, str]]]:
    """The id of a conversation, empty where it has none, and its messages: roles user and assistant by turns.

    Raises:
        InputError: it is no conversation; names the place, the field and the value.
    """
    name = ""
    if isinstance(value, dict):
        name = str(next((value[key] for key in IDS if value.get(key)), ""))
        field = next((key for key in MESSAGES if key in value), None)
        if field is None:
            raise InputError(f"{place}: a conversation needs one of {', '.join(MESSAGES)}; it has {', '.join(value)}.")
        value = value[field]
    if not isinstance(value, list):
        raise InputError(f"{place}: expected a list of messages, got {short(value)}.")
    messages: list[dict[str, str]] = []
    for i, message in enumerate(value):
        role, content = role_and_text(message, f"{place}: message {i + 1}")
        if not role or not content:
            continue
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += "\n" + content
        else:
            messages.append({"role": role, "content": content})
    return name, messages


def role_and_text(message: Any, place: str) -> tuple[str, str]:
    """Role (empty where the message is to be left out) and text of a message.

    Raises:
        InputError: it is no message.
    """
    if not isinstance(message, dict):
        raise InputError(f"{place}: expected an object with a role and a text, got {short(message)}.")
    role = next((message[key] for key in ROLE_FIELDS if key in message), None)
    if str(role).lower() not in ROLES:
        raise InputError(f"{place}: `role` must be one of {', '.join(ROLES)}, got {short(role)}.")
    content = next((message[key] for key in TEXT_FIELDS if key in message), None)
    if isinstance(content, list):  # OpenAI's parts: text, images, ...
        parts = [part for part in content if isinstance(part, dict) and part.get("type", "text") == "text"]
        content = "\n".join(str(part.get("text", "")) for part in parts)
    if content is not None and not isinstance(content, str):
        raise InputError(f"{place}: `content` must be a text, got {short(content)}.")
    return ROLES[str(role).lower()], (content or "").strip()


def turns_of(name: str, messages: list[dict[str, str]], place: str) -> Iterator[Turn]:
    """A turn for each question of a conversation."""
    questions = [i for i, message in enumerate(messages) if message["role"] == "user"]
    for count, i in enumerate(questions, 1):
        record = {
            "id": f"{name}_{count}", "conversation": name, "history": messages[:i],
            "question": messages[i]["content"],
            "reply": messages[i + 1]["content"] if i + 1 < len(messages) else "",
        }  # fmt: skip
        yield parse_record(Turn, record, place)


if __name__ == "__main__":
    run_command(main)
