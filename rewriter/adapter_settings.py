"""What a trained rewriter needs beside its weights: base model, prompt, limits, and what is searched.

Training saves it in the adapter's folder; whatever uses the adapter reads it from there.
"""

from dataclasses import asdict
from pathlib import Path

from core.artifacts import read_json, write_json
from core.settings import RewriterSettings

FILE = "rewriter.json"
FIELDS = (
    "model", "dtype", "instruction", "history_messages", "history_words", "max_new_tokens", "query", "question_weight",
)  # fmt: skip


def save_adapter_settings(folder: Path, options: RewriterSettings) -> None:
    """Write `rewriter.json` into an adapter's folder."""
    values = asdict(options)
    write_json(folder / FILE, {name: values[name] for name in FIELDS})


def load_adapter_settings(folder: Path) -> RewriterSettings | None:
    """The settings that an adapter was trained with; None where its folder has no `rewriter.json`.

    Raises:
        InputError: the file is damaged.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    values = read_json(path, *FIELDS)
    return RewriterSettings(adapter=str(folder), **{name: values[name] for name in FIELDS})
