"""Read conversations and sample rewrites; `Rewriter` applies a trained rewriter."""

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "Rewriter":
        from rewriter.rewriter import Rewriter  # slow import; keeps `import rewriter` fast

        return Rewriter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
