"""Stages of a run: each owns a folder, resumes after its last whole record, and never mixes settings.

A stage's folder holds `plan.json` (the settings and inputs that it was started with), `part-<rank>.jsonl` while it
runs (each process appends its records to its own part), and when it is complete `records.jsonl`, in the order of the
input, and `manifest.json`, written last.
"""

import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from core.artifacts import json_object, read_json, sha256, versions, write_atomic, write_json
from core.errors import InputError
from core.records import to_json_dict
from core.runtime import Progress, log, process, wait_for_all
from core.validation import parse_record

RECORDS = "records.jsonl"
_LOCKS: dict[Path, FileLock] = {}


def lock_run_dir(run_dir: Path) -> None:
    """Keep other processes out of a run folder until this one ends. Only rank 0 takes the lock.

    Raises:
        InputError: another process works in the folder, or it cannot be a folder.
    """
    if process()[0] != 0 or run_dir.resolve() in _LOCKS:
        return
    lock = FileLock(run_dir / ".lock", blocking=False)
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise InputError(
            f"another process is at work in {run_dir}; wait for it, or use another `--run.dir`."
        ) from error
    except OSError as error:
        raise InputError(f"`run.dir`: {run_dir} cannot hold a run ({error.strerror}); name another folder.") from error
    _LOCKS[run_dir.resolve()] = lock


def changes(name: str, before: Any, now: Any) -> list[str]:
    """The differences between two JSON values: a text for each entry of nested objects, none where they are equal."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = sorted({*before, *now})
        return [text for key in keys for text in changes(f"{name}.{key}", before.get(key), now.get(key))]
    return [] if before == now else [f"`{name}` was {before!r}, is {now!r}"]


class Stage:
    """One stage of a run.

    Args:
        run_dir: the run folder.
        name: of the stage, such as `round-1/scores`; its folder is `<run_dir>/<name>`.
        settings: every setting that decides the records, and no other.
        inputs: name -> hash of what it reads; with several data sets, one by the name of each.
        record_type: dataclass of its records; None for a stage without records.

    Raises:
        InputError: the folder holds work made with other settings or inputs.
    """

    def __init__(
        self,
        run_dir: Path,
        name: str,
        settings: dict[str, Any],
        inputs: dict[str, Any],
        record_type: type | None = None,
    ):
        self.run_dir, self.name, self.folder, self.record_type = run_dir, name, run_dir / name, record_type
        self.started = time.monotonic()
        self.plan = json.loads(json.dumps({"settings": settings, "inputs": inputs}))
        self.manifest_file, self.records_file = self.folder / "manifest.json", self.folder / RECORDS
        plan_file = self.folder / "plan.json"
        if plan_file.exists():
            before = read_json(plan_file, "settings", "inputs")
            self._refuse_changes([text for part in self.plan for text in changes(part, before[part], self.plan[part])])
        elif process()[0] == 0:
            write_json(plan_file, self.plan)

    def _refuse_changes(self, changed: Sequence[str]) -> None:
        if changed:
            raise InputError(
                f"{self.folder} was made with other settings: {'; '.join(changed)}. Use another `--run.dir`, "
                f"delete the folder, or give `train/dpo.py` the flag `--run.redo_from {self.name}`."
            )

    def expect(self, **expected: dict[str, Any]) -> None:
        """Make sure that this stage was made with the same settings and inputs as a later one.

        Raises:
            InputError: it was not; names the difference.
        """
        self._refuse_changes(
            [
                text
                for part, values in expected.items()
                for key, value in values.items()
                for text in changes(f"{part}.{key}", self.plan[part].get(key), json.loads(json.dumps(value)))
            ]
        )

    @property
    def complete(self) -> bool:
        return self.manifest_file.exists()

    @property
    def identity(self) -> str:
        """The hash of the settings and inputs, which decide the records; a later stage records it as its input."""
        return hashlib.sha256(json.dumps(self.plan, sort_keys=True).encode()).hexdigest()

    @property
    def manifest(self) -> dict[str, Any]:
        return read_json(self.manifest_file, "settings", "inputs", "files", "counts")

    def check_files(self) -> None:
        """Make sure that the records of a complete stage are those that its manifest describes.

        Raises:
            InputError: a file is missing or changed.
        """
        for name, expected in self.manifest["files"].items():
            path = self.folder / name
            if not path.exists() or sha256(path) != expected:
                raise InputError(f"{path} has changed since the stage ended; delete {self.folder} to make it again.")

    def __len__(self) -> int:
        return self.manifest["counts"]["total"]

    def __iter__(self) -> Iterator[Any]:
        """Every record, checked against its type.

        Raises:
            InputError: a line is damaged, or an id is repeated; names the file, the line and the way out.
        """
        for place, record, _ in self._lines():
            yield parse_record(self.record_type, record, place)

    def _lines(self) -> Iterator[tuple[str, dict[str, Any], tuple[Path, int]]]:
        """Place, JSON object, and file and offset of each whole record; a partial last line is skipped."""
        seen: set[str] = set()
        files = [self.records_file] if self.records_file.exists() else self._parts()
        for path in files:
            offset = 0
            with path.open("rb") as handle:
                for number, line in enumerate(handle, 1):
                    if not line.endswith(b"\n"):
                        break  # another process may be writing it
                    place = f"{path}:{number}"
                    way_out = f"Cut the file before that line (`head -n {number - 1}`), or delete {self.folder}."
                    try:
                        record = json_object(line.decode(errors="replace"), place)
                    except InputError as error:
                        raise InputError(f"{error} {way_out}") from error
                    if not isinstance(record.get("id"), str) or record["id"] in seen:
                        raise InputError(f"{place}: the id is missing or repeated. {way_out}")
                    seen.add(record["id"])
                    yield place, record, (path, offset)
                    offset += len(line)

    def _parts(self) -> list[Path]:
        return sorted(self.folder.glob("part-*.jsonl"))

    def done(self) -> set[str]:
        """Ids of the records that are on disk."""
        return {record["id"] for _, record, _ in self._lines()}

    def append(self, records: Iterable[Any]) -> None:
        """Add records to the part of this process, and hand them to the operating system at once."""
        part = self.folder / f"part-{process()[0]}.jsonl"
        truncate_partial_line(part)
        with part.open("a", encoding="utf-8") as handle:
            handle.writelines(
                json.dumps(to_json_dict(record), ensure_ascii=False, allow_nan=False) + "\n" for record in records
            )

    def write(self, records: Iterable[Any]) -> None:
        """Write all records at once."""
        lines = (json.dumps(to_json_dict(record), ensure_ascii=False, allow_nan=False) + "\n" for record in records)
        write_atomic(self.records_file, lines)

    def merge_parts(self, ids: Iterable[str]) -> None:
        """Replace the parts of all processes by one file.

        Args:
            ids: of all records, in the order of the file.
        """
        if not self.records_file.exists():
            places = {record["id"]: place for _, record, place in self._lines()}
            with ExitStack() as stack:
                handles = {part: stack.enter_context(part.open("rb")) for part in self._parts()}

                def lines() -> Iterator[str]:
                    for turn_id in ids:
                        path, offset = places[turn_id]
                        handles[path].seek(offset)
                        yield handles[path].readline().decode()

                write_atomic(self.records_file, lines())
        for part in self._parts():
            part.unlink()

    def finish(self, counts: dict[str, Any]) -> None:
        """Mark the stage complete. Called once, by rank 0, after every process has finished."""
        files = {RECORDS: sha256(self.records_file)} if self.records_file.exists() else {}
        seconds = round(time.monotonic() - self.started, 2)
        write_json(
            self.manifest_file,
            self.plan | {"counts": counts, "files": files, "seconds": seconds, "versions": versions()},
        )


def load_stage(run_dir: Path, name: str, record_type: type | None = None) -> Stage:
    """A complete stage, as the input of a later one.

    Raises:
        InputError: it is missing or not complete.
    """
    manifest = run_dir / name / "manifest.json"
    if not manifest.exists():
        raise InputError(f"the stage `{name}` is not complete in {run_dir}; make it first.")
    plan = read_json(manifest, "settings", "inputs", "files")
    stage = Stage(run_dir, name, plan["settings"], plan["inputs"], record_type)
    stage.check_files()
    return stage


def truncate_partial_line(path: Path) -> None:
    """Remove a last line without its line end, left by a kill or a full disk."""
    if not path.exists():
        return
    with path.open("rb+") as handle:
        size = handle.seek(0, 2)
        if size == 0:
            return
        handle.seek(size - 1)
        if handle.read() != b"\n":
            handle.seek(0)
            handle.truncate(handle.read().rfind(b"\n") + 1)


def run_stage(
    stage: Stage,
    items: Collection[Any],
    batch_size: int,
    load_worker: Callable[[], Callable[[list[Any]], Sequence[Any]]],
    summarize: Callable[[Iterator[Any]], dict[str, Any]],
    max_failed_fraction: float = 1.0,
) -> Stage:
    """Complete a stage, or do nothing where it is complete.

    Batches are fixed: batch i holds the items from `i * batch_size` on, and process `i % processes` makes it. An
    interrupted run therefore computes every batch with the same company, and ends with the same records.

    Args:
        stage: where the records go.
        items: what is processed, each with the `id` of its turn, in the order of the records.
        batch_size: items that are processed, and saved, together.
        load_worker: loads models and the like, and returns the function from a batch to one record per item. Called
            only when there is work.
        summarize: counts over all records, for the manifest and the summary line; `failed`, `total` and `reasons` are
            looked at.
        max_failed_fraction: share of failed records above which the run stops.

    Raises:
        InputError: too many records failed, or the folder holds a record that is not of this run.
    """
    if stage.complete:
        stage.check_files()
        log.info("%s: complete, nothing to do (%s)", stage.name, stage.folder)
        return stage
    lock_run_dir(stage.run_dir)
    wait_for_all()  # no process writes before rank 0 holds the lock
    start, done = time.monotonic(), stage.done()
    ids = [item.id for item in items]
    if unknown := done.difference(ids):
        raise InputError(
            f"{stage.folder} holds a record of `{min(unknown)}`, which this run does not have; delete the folder."
        )
    if done and len(done) < len(ids):
        log.info("%s: resuming after %d finished records", stage.name, len(done))
    if len(done) < len(ids):
        _run_batches(stage, items, batch_size, load_worker, done)
    wait_for_all()
    if process()[0] == 0:
        stage.merge_parts(ids)
    wait_for_all()
    counts = summarize(iter(stage))
    failed, total = counts.get("failed", 0), counts.get("total", 0)
    if total and failed / total > max_failed_fraction:
        reasons = ", ".join(f"{number} {reason}" for reason, number in counts.get("reasons", {}).items())
        raise InputError(
            f"{stage.name}: {failed} of {total} turns failed (reasons: {reasons}), more than "
            f"`run.max_failed_fraction` = {max_failed_fraction}. The records are in {stage.folder}; after a change, "
            f"use `--run.redo_from {stage.name}`."
        )
    if process()[0] == 0:
        stage.finish(counts)
    wait_for_all()
    seconds = time.monotonic() - start
    numbers = ", ".join(f"{value} {key}" for key, value in counts.items() if isinstance(value, int) and key != "total")
    rate = f"{(len(ids) - len(done)) / seconds:.1f}/s, " if len(done) < len(ids) else ""
    log.info("%s: %s turns (%s) in %.1f s, %s-> %s", stage.name, total, numbers, seconds, rate, stage.folder)
    return stage


def _run_batches(stage: Stage, items: Iterable, batch_size: int, load_worker: Callable, done: set[str]) -> None:
    """Make the missing records of this process's batches."""
    rank, world = process()
    worker = None
    with Progress(stage.name, -(-len(items) // world)) as progress:
        for number, batch in enumerate(batched(items, batch_size)):
            if number % world != rank:
                continue
            missing = {item.id for item in batch} - done
            if missing:
                worker = worker or load_worker()
                stage.append(record for record in worker(batch) if record.id in missing)
                progress.advance(len(batch))
            else:
                progress.already(len(batch))


def batched(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Consecutive items in lists of at most `size`."""
    batch: list[Any] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
