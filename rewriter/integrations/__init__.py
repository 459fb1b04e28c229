"""The rewriter as a Haystack component and as a LangChain runnable. Each module needs its own library."""

from collections.abc import Iterable

from core.errors import InputError
from core.records import Turn

ROLES = {"user": "user", "human": "user", "assistant": "assistant", "ai": "assistant"}


def to_turn(messages: Iterable[tuple[str, str | None]]) -> Turn:
    """Convert a chat to a turn.

    Args:
        messages: (role, text) pairs; system and tool messages are ignored.

    Raises:
        InputError: the last message is not from the user.
    """
    chat = [{"role": ROLES[role], "content": text or ""} for role, text in messages if role in ROLES]
    if not chat or chat[-1]["role"] != "user":
        raise InputError("the last message must be from the user.")
    return Turn("question", tuple(chat[:-1]), chat[-1]["content"])
