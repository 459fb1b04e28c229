"""Markdown tables."""

import html
import re
from collections.abc import Sequence

from tabulate import tabulate


def escape_markdown(text: str) -> str:
    """Escape a text for a Markdown cell: no line break, bar, HTML or emphasis."""
    return re.sub(r"([\\|*`])", r"\\\1", html.escape(" ".join(text.split()), quote=False))


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; texts are escaped."""
    header, *rows = ([escape_markdown(text) for text in row] for row in [header, *rows])
    return tabulate(rows, header, tablefmt="github", disable_numparse=True) + "\n"


def format_number(value: float | None, spec: str = ".3f") -> str:
    """Format a number for a table; empty for None."""
    return "" if value is None else format(value, spec)
