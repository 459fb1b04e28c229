"""A conversation in the terminal: questions in, queries out."""

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rewriter.rewriter import Rewriter


def printable(text: str) -> str:
    """Make a text safe for a terminal: control characters become spaces."""
    return "".join(character if character.isprintable() else " " for character in text)


def converse(rewriter: "Rewriter", n: int, lines_of: Callable[[str], Iterable[str]] = lambda query: ()) -> None:
    """Ask for questions and answers until a question is empty. For each question, print `n` queries, each followed by
    the lines that `lines_of` returns for it."""
    history: list[dict[str, str]] = []
    sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    print("Ask a question, then enter the assistant's answer, to which follow-ups can refer. An empty question ends.")
    try:
        while question := input("question: ").strip():
            for query in rewriter.rewrite(history, question, n):
                print(f"query:    {printable(query)}")
                for line in lines_of(query):
                    print(f"          {printable(line)}")
            history += [
                {"role": "user", "content": question},
                {"role": "assistant", "content": input("answer:   ").strip()},
            ]
    except EOFError:
        print()
