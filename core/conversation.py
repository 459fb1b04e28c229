"""How a conversation is written into a prompt: the one text form that the rewriter and the generator both see."""


def transcript(history: list[dict[str, str]], question: str | None = None) -> str:
    """The conversation as plain lines, the current question last.

    For example `"User: Who made it?\\nAssistant: Ann Lee\\nUser: Where was she born?"`.
    """
    lines = [f"{message['role'].capitalize()}: {message['content']}" for message in history]
    return "\n".join(lines if question is None else [*lines, f"User: {question}"])
