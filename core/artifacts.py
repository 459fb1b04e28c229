"""File helpers: JSON and JSONL, atomic writes, hashes, library versions."""

import hashlib
import json
import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from core.errors import InputError

LIBRARIES = ("torch", "transformers", "trl", "peft", "accelerate", "rank-bm25", "bm25s", "ir_measures")


def sha256(*paths: Path) -> str:
    """SHA-256 of the concatenated contents of files."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as handle:
            hashlib.file_digest(handle, lambda: digest)
    return digest.hexdigest()


@contextmanager
def text_errors(path: Path) -> Iterator[None]:
    """Raise an InputError if the file cannot be read, or is not UTF-8."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: not UTF-8 text (byte {error.start}: {error.reason}); decompress the file if it is compressed."
        ) from error


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and text of each line of a file, skipping empty lines and a byte order mark.

    Raises:
        InputError: the file cannot be read, or is not UTF-8.
    """
    with text_errors(path), path.open(encoding="utf-8-sig") as handle:
        yield from ((number, line) for number, line in enumerate(handle, 1) if line.strip())


def read_json_texts(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield the number, place and JSON text of each record of a JSONL file, or of a `.json` file with a list.

    Raises:
        InputError: the file cannot be read, or its list is not valid JSON (names the line).
    """
    text = ""
    if path.suffix == ".json":
        with text_errors(path):
            text = path.read_text(encoding="utf-8-sig")
    if text.lstrip().startswith("["):
        try:
            records = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}:{error.lineno}: not valid JSON: {error.msg} at column {error.colno}.") from error
        except (ValueError, RecursionError) as error:  # a number with too many digits, or lists nested too deeply
            raise InputError(f"{path}: cannot be read as JSON: {error}.") from error
        for number, record in enumerate(records, 1):
            yield number, f"{path}: record {number}", json.dumps(record)
        return
    for number, line in read_lines(path):
        yield number, f"{path}:{number}", line


def read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line number and object of each line of a JSONL file, skipping empty lines.

    Raises:
        InputError: the file is missing, or a line is not a JSON object (names file and line).
    """
    for number, place, text in read_json_texts(path):
        yield number, json_object(text, place)


def json_value(text: str, place: str) -> Any:
    """Parse a JSON text.

    Raises:
        InputError: the text is not JSON, or has a value that cannot be written back; the message starts with `place`.
    """
    try:
        value = json.loads(text)
        if "\\u" in text:  # only an escape sequence can give a lone surrogate
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise InputError(f"{place}: not valid JSON: {error.msg} at column {error.colno}.") from error
    except UnicodeEncodeError as error:
        raise InputError(f"{place}: a string contains half a character (a lone surrogate).") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: cannot be read as JSON: {error}.") from error
    return value


def json_object(line: str, place: str) -> dict[str, Any]:
    """Parse a line that must be a JSON object; anything else raises an InputError."""
    record = json_value(line, place)
    if not isinstance(record, dict):
        raise InputError(f"{place}: expected a JSON object, got {type(record).__name__}.")
    return record


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Add the path to an error that names no file, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def write_atomic(path: Path, text: str | Iterable[str]) -> None:
    """Write a file atomically, from a string or from an iterable of strings."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with named_errors(path), temporary.open("w", encoding="utf-8") as handle:
            handle.writelines([text] if isinstance(text, str) else text)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, atomically."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path, *needed: str) -> dict[str, Any]:
    """Read the JSON object in a file of a run; it must have the keys `needed`.

    Raises:
        InputError: the file is damaged.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise ValueError(f"expected an object, got {type(value).__name__}")
        if missing := [name for name in needed if name not in value]:
            raise ValueError(f"`{missing[0]}` is missing")
        return value
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged ({error}); delete its folder and rerun the command.") from error


def versions() -> dict[str, str]:
    """Versions of the libraries that can change results, and the commit of this project."""
    git = ["git", "-C", str(Path(__file__).resolve().parents[1]), "rev-parse", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return {name: version(name) for name in LIBRARIES} | ({"commit": commit} if commit else {})


def truncate_partial_line(path: Path) -> None:
    """Remove an incomplete last line, left by a killed process or a full disk."""
    if path.exists() and path.stat().st_size:
        with path.open("rb+") as handle:
            handle.seek(-1, os.SEEK_END)
            if handle.read() != b"\n":
                handle.seek(0)
                handle.truncate(handle.read().rfind(b"\n") + 1)
