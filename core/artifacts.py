"""Files of a run: JSON lines in and out, atomic writes, and stages that can be stopped at any moment and gone on with.

A stage owns a folder: `plan.json` (what it was started with), `part-<rank>.jsonl` (one record a line, appended as
they are made) and `manifest.json` (written last: its presence means complete).
"""

import fcntl
import hashlib
import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TextIO

from core.errors import InputError
from core.runtime import Progress

LIBRARIES = ("torch", "transformers", "trl", "peft", "accelerate", "rank-bm25", "bm25s", "ir_measures")


def sha256(*paths: Path) -> str:
    """SHA-256 of the contents of files, one after another."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as handle:
            while block := handle.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and object of each line of a JSONL file; empty lines are passed over.

    Raises:
        InputError: the file is missing, or a line is no JSON object (names file and line).
    """
    try:
        handle = path.open(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}).") from error
    with handle:
        try:
            for number, line in enumerate(handle, 1):
                if not line.strip():
                    continue
                yield number, json_object(line, f"{path}:{number}")
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: not UTF-8 text (byte {error.start}: {error.reason}).") from error


def json_object(line: str, place: str) -> dict[str, Any]:
    """The JSON object of one line.

    Raises:
        InputError: the line is no JSON object that can be written again; begins with `place`.
    """
    try:
        record = json.loads(line)
        json.dumps(record, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise InputError(f"{place}: not valid JSON: {error.msg} at column {error.colno}.") from error
    except UnicodeEncodeError as error:
        raise InputError(f"{place}: half a character (a lone surrogate) in a text.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: cannot be read as JSON: {error}.") from error
    if not isinstance(record, dict):
        raise InputError(f"{place}: expected a JSON object, got {type(record).__name__}.")
    return record


def write_atomic(path: Path, text: str | Iterable[str]) -> None:
    """Write a file whole or not at all, from one text or from pieces that come one at a time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as handle:
        handle.writelines([text] if isinstance(text, str) else text)
        handle.flush()
        os.fsync(handle.fileno())
    temporary.replace(path)


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, whole or not at all."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path, *needed: str, kind: type = dict) -> Any:
    """A JSON file of a run.

    Args:
        path: the file.
        needed: names that the object must have.
        kind: what the file holds.

    Raises:
        InputError: it is damaged; says which file to delete.
    """
    try:
        made = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(made, kind):
            raise ValueError(f"expected a {kind.__name__}, got {type(made).__name__}")
        if missing := [name for name in needed if name not in made]:
            raise ValueError(f"`{missing[0]}` is missing")
        return made
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is damaged ({error}); delete its folder and start the same command again."
        ) from error


def versions() -> dict[str, str]:
    """Versions of the libraries that can change a figure, and the commit of the code."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    root = Path(__file__).resolve().parents[1]
    git = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return found | ({"commit": git.stdout.strip()} if git.returncode == 0 else {})


def changes(name: str, before: Any, now: Any) -> list[str]:
    """What differs between two JSON values: a text for each entry of nested objects, and none where they are equal."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = sorted({*before, *now})
        return [text for key in keys for text in changes(f"{name}.{key}", before.get(key), now.get(key))]
    return [] if before == now else [f"`{name}` was {before!r}, is {now!r}"]


_HELD: dict[Path, TextIO] = {}


def hold(run: Path, rank: int = 0) -> None:
    """Keep other processes out of a run folder while this one lives; again for a folder that is held, nothing.

    Raises:
        InputError: another process works in it, or it cannot be a folder.
    """
    if rank != 0 or run.resolve() in _HELD:
        return
    try:
        run.mkdir(parents=True, exist_ok=True)
        handle = (run / ".lock").open("w")
    except OSError as error:
        raise InputError(f"`run.dir`: {run} cannot hold a run ({error.strerror}); name another folder.") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise InputError(f"another process is at work in {run}; wait for it, or use another `--run.dir`.") from error
    _HELD[run.resolve()] = handle


class Stage:
    """One stage's folder.

    Args:
        folder: `<run>/<stage>`.
        settings: every setting that decides what this stage makes, and nothing else.
        inputs: name -> SHA-256 of what it reads; of several data sets, one by the name of each.
        rank: number of this process; each process appends to its own part.

    Raises:
        InputError: the folder holds work made with other settings or inputs.
    """

    def __init__(self, folder: Path, settings: dict[str, Any], inputs: dict[str, Any], rank: int = 0):
        self.folder, self.rank, self.started = folder, rank, time.monotonic()
        self.plan = json.loads(json.dumps({"settings": settings, "inputs": inputs}))
        self.manifest_file = folder / "manifest.json"
        self._handle = None
        folder.mkdir(parents=True, exist_ok=True)
        plan = folder / "plan.json"
        if plan.exists():
            self._refuse_to_mix(read_json(plan, "settings", "inputs"))
        elif rank == 0:
            write_json(plan, self.plan)

    def _refuse_to_mix(self, before: dict[str, Any]) -> None:
        parts = ("settings", "inputs")
        self._refuse([text for part in parts for text in changes(part, before[part], self.plan[part])])

    def _refuse(self, changed: list[str]) -> None:
        if changed:
            raise InputError(
                f"{self.folder} was made with other settings: {'; '.join(changed)}. Use another `--run.dir`, "
                f"delete the folder, or give `train/dpo.py` the flag `--run.redo_from {self.folder.name}`."
            )

    def expect(self, **wanted: dict[str, Any]) -> None:
        """Make sure that this stage was made with some settings and inputs that a later stage reads too.

        Raises:
            InputError: it was not; names the difference.
        """
        self._refuse(
            [
                text
                for part, values in wanted.items()
                for key, value in values.items()
                for text in changes(f"{part}.{key}", self.plan[part].get(key), value)
            ]
        )

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def complete(self) -> bool:
        return self.manifest_file.exists()

    @property
    def parts(self) -> list[Path]:
        return sorted(self.folder.glob("part-*.jsonl"))

    def check_files(self) -> None:
        """Make sure that a complete stage's records are those its manifest tells of.

        Raises:
            InputError: a part is missing or changed.
        """
        for name, expected in read_json(self.manifest_file, "files")["files"].items():
            part = self.folder / name
            if not part.exists() or sha256(part) != expected:
                raise InputError(
                    f"{part} is not as it was when the stage ended; delete {self.folder} to make it again."
                )

    def records(self) -> Iterator[dict[str, Any]]:
        """Every whole record of every part; a last line cut short by a kill is passed over.

        Raises:
            InputError: a line is damaged, or an id stands twice; names part and line, and the way out.
        """
        seen: set[str] = set()
        for part in self.parts:
            with part.open(encoding="utf-8", errors="replace") as handle:
                for number, line in enumerate(handle, 1):
                    if not line.endswith("\n"):
                        break  # the end of the file, to which another process may be adding
                    place = f"{part}:{number}"
                    way_out = f"Cut the file before that line (`head -n {number - 1}`), or delete {self.folder}."
                    try:
                        record = json_object(line, place)
                    except InputError as error:
                        raise InputError(f"{error} {way_out}") from error
                    if not isinstance(record.get("id"), str) or record["id"] in seen:
                        raise InputError(f"{place}: the id is missing, or stands twice. {way_out}")
                    seen.add(record["id"])
                    yield record

    def done(self) -> set[str]:
        """Ids of the records that are there already."""
        return {record["id"] for record in self.records()}

    def append(self, records: Iterable[dict[str, Any]]) -> None:
        """Add records to this process's part and hand them to the operating system at once."""
        if self._handle is None:
            part = self.folder / f"part-{self.rank}.jsonl"
            cut_broken_end(part)
            self._handle = part.open("a", encoding="utf-8")
        self._handle.writelines(json.dumps(r, ensure_ascii=False, allow_nan=False) + "\n" for r in records)
        self._handle.flush()

    def finish(self, counts: dict[str, Any]) -> None:
        """Mark the stage complete (called once, by rank 0, after every process is done)."""
        if self._handle is not None:
            self._handle.close()
        seconds = round(time.monotonic() - self.started, 2)
        made = {part.name: sha256(part) for part in self.parts}
        write_json(
            self.manifest_file,
            self.plan | {"counts": counts, "files": made, "seconds": seconds, "versions": versions()},
        )

    def identity(self) -> str:
        """What a later stage records as its input: the settings and inputs that made this one, in one hash.

        Records follow from them, so it is the same however many processes wrote the parts.
        """
        return hashlib.sha256(json.dumps(self.plan, sort_keys=True).encode()).hexdigest()


def completed(folder: Path) -> Stage:
    """A finished stage as the input of the next.

    Raises:
        InputError: it is not there, or not finished.
    """
    manifest = folder / "manifest.json"
    if not manifest.exists():
        raise InputError(f"the stage `{folder.name}` is not complete in {folder.parent}; make it first.")
    made = read_json(manifest, "settings", "inputs", "files")
    stage = Stage(folder, made["settings"], made["inputs"])
    stage.check_files()
    return stage


def cut_broken_end(path: Path) -> None:
    """Remove a last line without its line end, left by a kill or a full disk."""
    if not path.exists():
        return
    with path.open("rb+") as handle:
        data = handle.read()
        handle.truncate(data.rfind(b"\n") + 1)


def in_batches(
    stage: Stage,
    batches: list[list[Any]],
    make: Callable[[list[Any]], list[dict[str, Any]]],
    progress: Progress,
) -> Counter:
    """Work through a fixed plan of batches, passing over those whose records are there.

    The plan does not depend on what is done, so a run that was killed computes every batch in the company it would
    have had, and ends with the same numbers.

    Args:
        stage: where the records go.
        batches: items with an `id`.
        make: one record per item of a batch, in any order.
        progress: told how many items were dealt with, and how many before.

    Returns:
        How many items were `made` and `found`.
    """
    done, counts = stage.done(), Counter()
    left = [batch for batch in batches if any(item.id not in done for item in batch)]
    progress.already(sum(map(len, batches)) - sum(map(len, left)))
    for batch in left:
        missing = {item.id for item in batch} - done
        stage.append(record for record in make(batch) if record["id"] in missing)
        counts["made"] += len(missing)
        progress.advance(len(batch))
    counts["found"] = sum(map(len, batches)) - counts["made"]
    return counts
