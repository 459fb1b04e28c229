"""The rewriter as a component of Haystack and as a runnable of LangChain. Each module needs its own library."""

from collections.abc import Iterable

from core.errors import InputError
from core.records import Turn

ROLES = {"user": "user", "human": "user", "assistant": "assistant", "ai": "assistant"}


def to_turn(messages: Iterable[tuple[str, str | None]]) -> Turn:
    """A chat as a turn.

    Args:
        messages: role and text; messages of systems and tools are left out.

    Raises:
        InputError: the last message is not a user's.
    """
    chat = [{"role": ROLES[role], "content": text or ""} for role, text in messages if role in ROLES]
    if not chat or chat[-1]["role"] != "user":
        raise InputError("the messages must end with a user's message.")
    return Turn("question", tuple(chat[:-1]), chat[-1]["content"])
