"""The rewrite prompt, and parsing of the model's output."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import regex

from core.conversation import transcript
from core.records import Message
from core.settings import RewriterSettings

INSTRUCTION = "Rewrite the last question as a search query that stands alone. Reply with the query only."


@dataclass(frozen=True)
class RewritePrompt:
    """The prompt that asks the rewriter for a stand-alone query.

    Args:
        instruction: the system message; empty for `INSTRUCTION`.
        examples: (conversation, rewrite) pairs, shown as user and assistant messages before the conversation.
        history_messages: number of most recent messages to show; None shows all.
        history_words: maximum words of each earlier message to show, from its beginning; None shows all.
    """

    instruction: str = ""
    examples: tuple[tuple[str, str], ...] = ()
    history_messages: int | None = None
    history_words: int | None = None

    @classmethod
    def of(cls, settings: RewriterSettings, examples: bool = False) -> "RewritePrompt":
        """The prompt for the settings, with or without their examples."""
        pairs = [(example.conversation.strip(), example.rewrite.strip()) for example in settings.examples]
        return cls(
            settings.instruction, tuple(pairs if examples else ()), settings.history_messages, settings.history_words
        )

    def messages(self, history: Sequence[Message], question: str) -> list[Message]:
        """The chat messages of the prompt, for earlier messages, oldest first, and the current question."""
        start = 0 if self.history_messages is None else max(0, len(history) - self.history_messages)
        recent = [m | {"content": first_words(m["content"], self.history_words)} for m in history[start:]]
        turns = [
            {"role": role, "content": text}
            for example in self.examples
            for role, text in zip(("user", "assistant"), example, strict=True)
        ]
        system = {"role": "system", "content": self.instruction or INSTRUCTION}
        return [system, *turns, {"role": "user", "content": transcript(recent, question)}]


def first_words(text: str, count: int | None) -> str:
    """The first `count` words of a text, joined by single spaces; a shorter text is unchanged."""
    words = text.split()
    return text if count is None or len(words) <= count else " ".join(words[:count])


def user_turns(history: Sequence[Message], question: str) -> str:
    """All messages of the user joined, with the current question last."""
    return " ".join([*(m["content"] for m in history if m["role"] == "user"), question])


def search_query(question: str, rewrite: str, settings: RewriterSettings) -> str:
    """The search query of a rewrite: the rewrite, or the repeated question followed by the rewrite.

    Repeating the question keeps its terms above those of the rewrite in a bag-of-words ranking, as query2doc does
    (arXiv 2303.07678).
    """
    if settings.query == "rewrite":
        return rewrite
    return " ".join([question] * settings.question_weight + [rewrite])


THINKING = re.compile(r"<think>.*?(</think>|\Z)|\A.*</think>", re.DOTALL)
LABEL = re.compile(
    r"^\W*((stand-?\s?alone|re-?written|search|final|the)\s+)*(re-?write|query|question|search|answer)\W*?:[\s*_]*",
    re.IGNORECASE,
)
QUOTES = {'"': '"', "'": "'", "“": "”", "‘": "’", "«": "»", "`": "`"}


def read_rewrite(output: str) -> str:
    """Extract the query from a model's output, decoded without special tokens.

    Removes thinking, labels ("Rewritten query:"), quotes, list markers and line breaks; empty if nothing is left.
    """
    text = THINKING.sub(" ", output).strip()
    text = " ".join(text.split())
    text = LABEL.sub("", text).strip("*_ ")
    text = re.sub(r"^([-*•]|\d+[.)])\s+", "", text).strip()
    while len(text) > 1 and QUOTES.get(text[0]) == text[-1]:
        text = text[1:-1].strip()
    return text if any(letter.isalnum() for letter in text) else ""


def normalized(query: str) -> str:
    """Lower-case words joined by single spaces, to compare queries as a retriever would."""
    return " ".join(regex.findall(r"[\p{L}\p{M}\p{N}_]+", query.casefold()))
