"""The user's cache: the folder of collections, indexes and converted models."""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout
from huggingface_hub import hf_hub_download

from core.artifacts import read_json, sha256, write_json
from core.errors import InputError, first_line

MODEL_FILES = (".safetensors", ".json", ".txt", ".model")  # suffixes of the files that decide what a model computes


def user_cache() -> Path:
    """The folder that holds what is derived from the user's files: `query-rewriter-trainer` in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "query-rewriter-trainer"


def cached_sha256(path: Path, cache: Path) -> str:
    """SHA-256 of a file. It is noted in the folder `cache`, and computed again after the file's size, inode or times
    changed."""
    status = path.stat()
    state = [str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    note = cache / "sources" / f"{hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]}.json"
    known = read_json(note) if note.exists() else {}
    if known.get("state") != state:
        known = {"state": state, "sha256": sha256(path)}
        write_json(note, known)
    return known["sha256"]


def model_identity(name: str) -> str:
    """What identifies a model: a hash of the files of a folder, or a Hub id with its revision."""
    folder = Path(name)
    if folder.is_dir():
        return sha256(*sorted(file for file in folder.rglob("*") if file.suffix in MODEL_FILES))[:16]
    try:
        config = Path(hf_hub_download(name, "config.json"))
    except (OSError, ValueError) as error:
        raise InputError(f"{name} is neither a folder nor a model of the Hub: {first_line(error)}") from error
    return f"{name}@{config.parent.name}"  # the Hub's cache has a folder per revision


def build_once(path: Path, build: Callable[[Path], None], wait: bool = True) -> bool:
    """Build a file or folder of the cache unless it exists; it is complete or not there at all.

    Of several processes one builds, under a lock that the system releases with its process.

    Args:
        path: the file or folder.
        build: writes it to the temporary path that it is given.
        wait: whether to wait for another process that builds it; otherwise the call returns at once.

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
            shutil.rmtree(partial, ignore_errors=True)  # what a killed process left
            build(partial)
            partial.replace(path)
            return True
    except Timeout:
        return False
