"""The user's cache folder for collections, indexes and converted models."""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout
from huggingface_hub import hf_hub_download

from core.artifacts import read_json, sha256, write_json
from core.errors import InputError, first_line

MODEL_FILES = (".safetensors", ".json", ".txt", ".model")  # suffixes of the files that affect a model's outputs


def user_cache() -> Path:
    """The folder for files derived from the user's files: `query-rewriter-trainer` in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "query-rewriter-trainer"


def cached_sha256(path: Path, cache: Path) -> str:
    """SHA-256 of a file, stored in the folder `cache` and recomputed when the file's size, inode or times change."""
    status = path.stat()
    state = [str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    entry_file = cache / "sources" / f"{hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]}.json"
    entry = read_json(entry_file) if entry_file.exists() else {}
    if entry.get("state") != state:
        entry = {"state": state, "sha256": sha256(path)}
        write_json(entry_file, entry)
    return entry["sha256"]


def model_identity(name: str) -> str:
    """What identifies a model: a hash of the files in a folder, or a Hub id with its revision."""
    folder = Path(name)
    if folder.is_dir():
        return sha256(*sorted(file for file in folder.rglob("*") if file.suffix in MODEL_FILES))[:16]
    try:
        config = Path(hf_hub_download(name, "config.json"))
    except (OSError, ValueError) as error:
        raise InputError(f"{name} is neither a folder nor a model on the Hub: {first_line(error)}") from error
    return f"{name}@{config.parent.name}"  # the Hub's cache has one folder per revision


def build_once(path: Path, build: Callable[[Path], None], wait: bool = True) -> bool:
    """Build a file or folder in the cache unless it exists. It appears only when it is complete.

    Only one process builds at a time, under a lock that the operating system releases when the process ends.

    Args:
        path: the file or folder.
        build: function that writes the file or folder to a temporary path, its argument.
        wait: whether to wait while another process builds it; if False, return immediately.

    Returns:
        Whether this call built it.
    """
    if path.exists():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(path.with_name(f".{path.name}.lock"), blocking=wait):
            if path.exists():
                return False
            partial = path.with_name(f".{path.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)  # left by a killed process
            build(partial)
            partial.replace(path)
            return True
    except Timeout:
        return False
