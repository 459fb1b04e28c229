"""Errors for bad input. A message names the place and says how to fix it."""

import difflib
import re

CREDENTIALS = re.compile(r"://([^/\s@]*|[^\s@]*:[^\s@]*)@")  # in a URL: `user@` or `user:password@`


class InputError(ValueError):
    """Bad input, settings or files. Commands print its text without a traceback and exit with status 2."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message, plus the second if the first ends with a colon; the name of the error's
    class if the message is empty."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


def short(value: object, max_length: int = 60) -> str:
    """Shorten a value for an error message."""
    text = repr(value)
    return text if len(text) <= max_length else text[: max_length - 3] + "..."


def nearest(name: str, known: list[str]) -> str:
    """The end of an error message: the closest known name, or all of them."""
    return did_you_mean(name, known) or f"known: {', '.join(known)}."


def did_you_mean(name: str, known: list[str]) -> str:
    """The end of an error message: the closest known name; empty if none is close."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean `{close[0]}`?" if close else ""
