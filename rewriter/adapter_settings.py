"""Settings that a trained rewriter needs beside its weights: base model, prompt, limits, form of the search query.

Training saves them as `rewriter.json` in the adapter's folder, from which all users of the adapter read them.
"""

import json
from dataclasses import asdict
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from core.artifacts import read_json, write_json
from core.errors import InputError, first_line
from core.schema import validate
from core.settings import RewriterSettings

FILE = "rewriter.json"
FIELDS = (
    "model", "dtype", "instruction", "history_messages", "history_words", "max_new_tokens", "query", "question_weight",
)  # fmt: skip


def save_adapter_settings(folder: Path, options: RewriterSettings) -> None:
    """Write `rewriter.json` into the folder of an adapter or a merged model."""
    values = asdict(options)
    write_json(folder / FILE, {name: values[name] for name in FIELDS})


def load_adapter_settings(name: str | Path) -> RewriterSettings | None:
    """Load the settings of a trained rewriter.

    Args:
        name: run folder, adapter folder, folder of a merged model, or the Hub id of one of these.

    Returns:
        The settings, with `adapter` or, for a merged model, `model` set to the folder or Hub id; None if there is no
        `rewriter.json`.

    Raises:
        InputError: the run is not complete, the file is damaged, or the Hub cannot be reached.
    """
    folder = Path(name)
    if (folder / "adapter" / FILE).is_file():
        folder = folder / "adapter"
    if folder.is_dir():
        name = folder
    else:
        try:
            folder = Path(snapshot_download(str(name), allow_patterns=[FILE, "adapter_config.json"]))
        except (OSError, HfHubHTTPError, HFValidationError, json.JSONDecodeError) as error:
            raise InputError(
                f"{name} is not a folder and cannot be read from the Hub ({first_line(error)})."
            ) from error
    if (folder / "run.json").is_file():  # written by train/dpo.py when it starts
        raise InputError(f"{name} has no adapter yet; complete its `dpo` stage first.")
    if not (folder / FILE).is_file():
        return None
    values = read_json(folder / FILE, *FIELDS)
    kind = "adapter" if (folder / "adapter_config.json").is_file() else "model"
    return validate(
        RewriterSettings, {field: values[field] for field in FIELDS} | {kind: str(name)}, f"{folder / FILE}: "
    )
