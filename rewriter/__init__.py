"""Conversations in, candidate rewrites out; `Rewriter` uses a trained rewriter."""

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "Rewriter":
        from rewriter.rewriter import Rewriter  # heavy: `import rewriter` alone stays quick

        return Rewriter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
