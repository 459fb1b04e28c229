"""Write and upload the exports of `train.export`."""

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from core.errors import InputError, first_line
from core.model_spec import rewriter_spec
from core.progress import log
from core.settings import RewriterSettings
from rewriter.adapter_settings import load_adapter_settings, save_adapter_settings
from train.export.__main__ import ExportFlags
from train.export.cards import model_card, pairs_card
from train.report.run_data import RunData, load_run
from train.run import load_run_folder

HUB = None  # URL of the Hub; None for the one in the environment (HF_ENDPOINT)
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors", "rewriter.json", "*token*", "*.jinja", "vocab*",
                 "merges*")  # fmt: skip


def export_run(flags: ExportFlags) -> None:
    """Write the export, and upload it with `push_to_hub`.

    Raises:
        InputError: the run has no adapter or no pairs, or the Hub rejects the upload.
    """
    data = load_run(load_run_folder(flags.run))
    if flags.pairs:
        write_pairs(data, flags.pairs)
        if flags.push_to_hub:
            log.warning("the pairs contain conversations; make sure that you may share them.")
            upload(flags.pairs, flags.push_to_hub, "dataset")
        return
    options = load_adapter_settings(flags.run)
    if flags.merged:
        write_merged(data, options, flags.merged)
        if flags.push_to_hub:
            upload(flags.merged, flags.push_to_hub, "model")
        return
    with tempfile.TemporaryDirectory() as folder:
        for file in (file for pattern in ADAPTER_FILES for file in (flags.run / "adapter").glob(pattern)):
            shutil.copy(file, folder)
        model_card(data, options, adapter=True).save(Path(folder) / "README.md")
        upload(Path(folder), flags.push_to_hub, "model")


def write_merged(data: RunData, options: RewriterSettings, folder: Path) -> None:
    """Write the base model with the adapter merged into it, its tokenizer, `rewriter.json` and a card."""
    lm = replace(rewriter_spec(options), dtype="float32").load()  # merging in 16 bits would round the adapter
    lm.model.to(getattr(torch, options.dtype)).save_pretrained(folder)
    lm.tokenizer.save_pretrained(folder)
    save_adapter_settings(folder, options)
    model_card(data, options, adapter=False).save(folder / "README.md")
    log.info("merged model -> %s", folder)


def write_pairs(data: RunData, folder: Path) -> None:
    """Write the pairs of all rounds as JSONL files, and a card."""
    rounds = [round_data.number for round_data in data.rounds if "pairs" in round_data.counts]
    if not rounds:
        raise InputError(f"{data.run.path} has no pairs yet; complete its `pairs` stage first.")
    folder.mkdir(parents=True, exist_ok=True)
    for number in rounds:
        shutil.copy(data.run.path / f"round-{number}/pairs/records.jsonl", folder / f"round-{number}.jsonl")
    pairs_card(data).save(folder / "README.md")
    log.info("pairs of %d rounds -> %s; they contain conversations", len(rounds), folder)


def upload(folder: Path, name: str, kind: str) -> None:
    """Upload a folder to a `model` or `dataset` repository on the Hub. A new repository is private.

    Raises:
        InputError: the id is invalid, or the Hub rejects the upload.
    """
    hub = HfApi(endpoint=HUB)
    try:
        hub.create_repo(name, private=True, repo_type=kind, exist_ok=True)
        url = hub.upload_folder(repo_id=name, folder_path=folder, repo_type=kind)
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        hint = "; log in with `hf auth login`" if "401" in str(error) else ""
        raise InputError(f"`--push_to_hub {name}`: {first_line(error)}{hint}") from error
    log.info("uploaded -> %s", url)
