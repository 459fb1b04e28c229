"""The vectors of a collection, computed in shards that a stopped run goes on from and that processes share out."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from filelock import FileLock, Timeout

from core.artifacts import write_json
from core.errors import InputError
from core.runtime import Progress, log

if TYPE_CHECKING:
    from retrieval.collection import Collection

SHARD = 8192  # passages; what a process that is stopped loses at most


class TextEncoder(Protocol):
    """Texts to float32 vectors [texts, width]; `plan` holds all that decides those of passages."""

    plan: dict[str, Any]

    def queries(self, texts: Sequence[str]) -> np.ndarray: ...

    def passages(self, texts: Sequence[str]) -> np.ndarray: ...


def folder_of(collection: "Collection", encoder: TextEncoder) -> Path:
    """Where the vectors of this collection by this encoder are: `dense-<hash of the encoder's plan>`."""
    name = hashlib.sha256(json.dumps(encoder.plan, sort_keys=True).encode()).hexdigest()[:16]
    return collection.folder / f"dense-{name}"


def embed(collection: "Collection", encoder: TextEncoder, shard: int = SHARD) -> list[Path]:
    """Make the shards that are not there yet.

    Shard n holds the rows from n x `shard` on, float32 [rows, width], in `shard-<n>.npy`. Processes, of one run or of
    several, each take the next shard that none has and none is at work on (a lock that the system lets go with its
    process), so a process may come late, or not at all. At the end each waits for what others are still at.

    Args:
        collection: the passages.
        encoder: what makes the vectors.
        shard: rows per shard.

    Returns:
        The shards in order.

    Raises:
        InputError: a shard is damaged, or the collection does not have the passages that it tells of.
    """
    folder, total = folder_of(collection, encoder), len(collection)
    files = [folder / f"shard-{number:05d}.npy" for number in range(-(-total // shard))]
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "plan.json").exists():
        write_json(folder / "plan.json", {"collection": collection.identity, **encoder.plan})
    sizes = [min(shard, total - number * shard) for number in range(len(files))]
    missing = [size for file, size in zip(files, sizes, strict=True) if not file.exists()]
    if len(missing) < len(files):
        log.info("embeddings: %d of %d shards are there", len(files) - len(missing), len(files))
    with Progress("embeddings", sum(missing), "passages") as progress:
        for patient in (False, True):  # first what nobody is at, then what others may have left
            if not all(file.exists() for file in files):
                for number, texts in enumerate(parts_of(collection, shard)):
                    if make_once(files[number], patient, lambda texts=texts: encoder.passages(texts)):
                        progress.advance(len(texts))
    for file, size in zip(files, sizes, strict=True):
        check(file, size)
    return files


def parts_of(collection: "Collection", size: int) -> Iterator[list[str]]:
    """The texts of a collection, a shard at a time.

    Raises:
        InputError: it has more or fewer passages than it tells of.
    """
    passages, seen = collection.passages(), 0
    while texts := [passage.content for passage in islice(passages, size)]:
        seen += len(texts)
        if seen > len(collection):
            break
        yield texts
    if seen != len(collection):
        raise InputError(
            f"the collection has changed since its {len(collection)} passages were counted; start the command again."
        )


def make_once(file: Path, patient: bool, make: Callable[[], np.ndarray]) -> bool:
    """Write an array to a file, whole or not at all, unless the file is there.

    Args:
        file: where it goes.
        patient: whether to wait for a process that is making it; if not, the file is left to it.
        make: the array.

    Returns:
        Whether this process made it.
    """
    if file.exists():
        return False
    try:
        with FileLock(f"{file}.lock", blocking=patient):
            if file.exists():
                return False
            temporary = file.with_suffix(".part")
            with temporary.open("wb") as handle:
                np.save(handle, make(), allow_pickle=False)
            temporary.replace(file)
    except Timeout:
        return False
    return True


def check(file: Path, rows: int) -> None:
    """Make sure that a shard has its rows.

    Raises:
        InputError: it has not, or is no array.
    """
    try:
        found = np.load(file, mmap_mode="r", allow_pickle=False).shape[0]
    except (OSError, ValueError, EOFError, IndexError) as error:
        raise InputError(f"{file} is damaged ({error}); delete it and start the same command again.") from error
    if found != rows:
        raise InputError(f"{file} has {found} rows, not {rows}; delete it and start the same command again.")
