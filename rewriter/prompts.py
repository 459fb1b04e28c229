"""The rewrite prompt, and reading the model's output."""

import re

import regex

from core.conversation import transcript

INSTRUCTION = "Rewrite the last question as a search query that stands alone. Reply with the query only."


def rewrite_messages(
    history: list[dict[str, str]], question: str, instruction: str = INSTRUCTION
) -> list[dict[str, str]]:
    """Chat messages that ask for a stand-alone query.

    Args:
        history: earlier messages, oldest first.
        question: the current question.
        instruction: the system message.
    """
    return [{"role": "system", "content": instruction}, {"role": "user", "content": transcript(history, question)}]


THINKING = re.compile(r"<think>.*?(</think>|\Z)|\A.*</think>", re.DOTALL)
LABEL = re.compile(
    r"^\W*((stand-?\s?alone|re-?written|search|final|the)\s+)*(re-?write|query|question|search|answer)\W*?:[\s*_]*",
    re.IGNORECASE,
)
QUOTES = {'"': '"', "'": "'", "“": "”", "‘": "’", "«": "»", "`": "`"}


def read_rewrite(output: str) -> str:
    """The query in a model's output: without thinking, labels ("Rewritten query:"), quotes, list marks and line
    breaks.

    Args:
        output: decoded text, special tokens left out.

    Returns:
        One line; empty when nothing is left.
    """
    text = THINKING.sub(" ", output).strip()
    text = " ".join(text.split())
    text = LABEL.sub("", text).strip("*_ ")
    text = re.sub(r"^([-*•]|\d+[.)])\s+", "", text).strip()
    while len(text) > 1 and QUOTES.get(text[0]) == text[-1]:
        text = text[1:-1].strip()
    return text if any(letter.isalnum() for letter in text) else ""


def normalised(query: str) -> str:
    """A query as a retriever sees it, for telling whether two are the same: lower-case words, one space between."""
    return " ".join(regex.findall(r"[\p{L}\p{M}\p{N}_]+", query.casefold()))
