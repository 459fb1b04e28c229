"""The user's cache: the folder of collections, indexes and converted models."""

import hashlib
import os
from pathlib import Path

from core.artifacts import read_json, sha256, write_json


def user_cache() -> Path:
    """The folder that holds what is derived from the user's files: `query-rewriter-trainer` in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "query-rewriter-trainer"


def cached_sha256(path: Path, cache: Path) -> str:
    """SHA-256 of a file. It is noted in a cache, and computed again after the file's size, inode or times changed.

    Args:
        path: the file.
        cache: the folder that keeps the note.

    Returns:
        The hash in hexadecimal digits.

    Raises:
        OSError: the file cannot be read, or the note cannot be written.
    """
    status = path.stat()
    state = [str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    note = cache / "sources" / f"{hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]}.json"
    known = read_json(note) if note.exists() else {}
    if known.get("state") != state:
        known = {"state": state, "sha256": sha256(path)}
        write_json(note, known)
    return known["sha256"]
