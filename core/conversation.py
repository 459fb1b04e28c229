"""The text form of a conversation in the prompts of the rewriter and the generator."""


def transcript(history: list[dict[str, str]], question: str | None = None) -> str:
    """Format a conversation as text, one message per line, with the current question last.

    For example `"User: Who made it?\\nAssistant: Ann Lee\\nUser: Where was she born?"`.
    """
    lines = [f"{message['role'].capitalize()}: {message['content']}" for message in history]
    return "\n".join(lines if question is None else [*lines, f"User: {question}"])
