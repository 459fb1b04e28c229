"""Stages of a run: each has a folder, resumes after its last whole record, and never mixes settings.

A stage's folder contains `plan.json` (the settings and inputs that it was started with), `part-<rank>.jsonl` while it
runs (each process appends its records to its own part), and when it is complete `records.jsonl`, in the order of the
input, and `manifest.json`, written last.
"""

import hashlib
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from core.artifacts import (
    json_object,
    named_errors,
    read_json,
    sha256,
    truncate_partial_line,
    versions,
    write_atomic,
    write_json,
)
from core.distributed import process
from core.errors import InputError
from core.json_records import parse_record, to_json_line, write_records
from core.progress import peak_memory_mb

RECORDS = "records.jsonl"


def changes(name: str, before: Any, now: Any) -> list[str]:
    """The differences between two JSON values: one line for each entry of nested objects that differs."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = sorted({*before, *now})
        return [text for key in keys for text in changes(f"{name}.{key}", before.get(key), now.get(key))]
    return [] if before == now else [f"`{name}` was {before!r}, is {now!r}"]


class Stage:
    """One stage of a run.

    Args:
        run_dir: the run folder.
        name: of the stage, such as `round-1/scores`; its folder is `<run_dir>/<name>`.
        settings: the settings that affect the records, and no others.
        inputs: name -> hash of the input; with several data sets, one hash for the name of each.
        record_type: dataclass of its records; None for a stage without records.
        remedy: what to do if the folder was created with other settings, for the message; by default for the stages
            of train/dpo.py.

    Raises:
        InputError: the folder was created with other settings or inputs.
    """

    def __init__(
        self,
        run_dir: Path,
        name: str,
        settings: dict[str, Any],
        inputs: dict[str, Any],
        record_type: type | None = None,
        remedy: str = "",
    ):
        self.run_dir, self.name, self.folder, self.record_type = run_dir, name, run_dir / name, record_type
        self.remedy = remedy or (
            f"Use another `--run.dir`, delete the folder, or run `train/dpo.py` with `--run.redo_from {name}`."
        )
        self.started = time.monotonic()
        self.batch_limit: int | None = None  # see `LanguageModel`; for the manifest and the summary line
        self.plan = json.loads(json.dumps({"settings": settings, "inputs": inputs}))
        self.manifest_file, self.records_file = self.folder / "manifest.json", self.folder / RECORDS
        plan_file = self.folder / "plan.json"
        if plan_file.exists():
            self._refuse_changes(read_json(plan_file, "settings", "inputs"), self.plan)
        elif process()[0] == 0:
            write_json(plan_file, self.plan)

    def _refuse_changes(self, before: dict[str, Any], now: dict[str, Any]) -> None:
        if changed := [text for part in now for text in changes(part, before[part], now[part])]:
            raise InputError(f"{self.folder} was created with other settings: {'; '.join(changed)}. {self.remedy}")

    def expect(self, inputs: dict[str, Any]) -> None:
        """Check that this stage was run with the same inputs as a later one."""
        before = {key: self.plan["inputs"].get(key) for key in inputs}
        self._refuse_changes({"inputs": before}, json.loads(json.dumps({"inputs": inputs})))

    @property
    def complete(self) -> bool:
        return self.manifest_file.exists()

    @property
    def identity(self) -> str:
        """The hash of the settings and inputs, which determine the records; later stages record it as an input."""
        return hashlib.sha256(json.dumps(self.plan, sort_keys=True).encode()).hexdigest()

    @property
    def manifest(self) -> dict[str, Any]:
        return read_json(self.manifest_file, "settings", "inputs", "files", "counts")

    def check_files(self) -> None:
        """Check that the records of a complete stage are those that its manifest describes."""
        for name, expected in self.manifest["files"].items():
            path = self.folder / name
            if not path.exists() or sha256(path) != expected:
                raise InputError(f"{path} has changed since the stage ended; delete {self.folder} to run it again.")

    def __len__(self) -> int:
        return self.manifest["counts"]["total"]

    def __iter__(self) -> Iterator[Any]:
        """Every record, checked against its type. An InputError names a damaged line or a repeated id."""
        for place, record, _ in self._lines():
            yield parse_record(self.record_type, record, place)

    def _lines(self) -> Iterator[tuple[str, dict[str, Any], tuple[Path, int]]]:
        """Place, JSON object, and file and offset of each whole record; a partial last line is skipped."""
        seen: set[str] = set()
        for path in [self.records_file] if self.records_file.exists() else self._parts():
            offset = 0
            with path.open("rb") as handle:
                for number, line in enumerate(handle, 1):
                    if not line.endswith(b"\n"):
                        break  # another process may be writing it
                    place = f"{path}:{number}"
                    remedy = f"Cut the file before that line (`head -n {number - 1}`), or delete {self.folder}."
                    try:
                        record = json_object(line.decode(errors="replace"), place)
                    except InputError as error:
                        raise InputError(f"{error} {remedy}") from error
                    if not isinstance(record.get("id"), str) or record["id"] in seen:
                        raise InputError(f"{place}: the id is missing or repeated. {remedy}")
                    seen.add(record["id"])
                    yield place, record, (path, offset)
                    offset += len(line)

    def _parts(self) -> list[Path]:
        return sorted(self.folder.glob("part-*.jsonl"))

    def done(self) -> set[str]:
        """Ids of the records that are on disk."""
        return {record["id"] for _, record, _ in self._lines()}

    def append(self, records: Iterable[Any]) -> None:
        """Add records to the part of this process, and flush them to the operating system."""
        part = self.folder / f"part-{process()[0]}.jsonl"
        truncate_partial_line(part)
        with named_errors(part), part.open("a", encoding="utf-8") as handle:
            handle.writelines(map(to_json_line, records))

    def write(self, records: Iterable[Any]) -> None:
        """Write all records at once."""
        write_records(self.records_file, records)

    def merge_parts(self, ids: Iterable[str]) -> None:
        """Replace the parts of all processes by one file, with the records in the order of `ids`."""
        if not self.records_file.exists():
            places = {record["id"]: place for _, record, place in self._lines()}
            write_atomic(self.records_file, (line_at(*places[turn_id]) for turn_id in ids))
        for part in self._parts():
            part.unlink()

    def finish(self, counts: dict[str, Any]) -> None:
        """Mark the stage complete. Called once, by rank 0, after every process has finished."""
        manifest = self.plan | {
            "counts": counts,
            "files": {RECORDS: sha256(self.records_file)} if self.records_file.exists() else {},
            "seconds": round(time.monotonic() - self.started, 2),
            "peak_memory_mb": round(peak_memory_mb()),
            "versions": versions(),
        }
        write_json(self.manifest_file, manifest)


def line_at(path: Path, offset: int) -> str:
    with path.open("rb") as handle:
        handle.seek(offset)
        return handle.readline().decode()


def load_stage(run_dir: Path, name: str, record_type: type | None = None) -> Stage:
    """A complete stage, as the input of a later one.

    Raises:
        InputError: the stage is missing or not complete.
    """
    manifest = run_dir / name / "manifest.json"
    if not manifest.exists():
        raise InputError(f"the stage `{name}` is not complete in {run_dir}; run it first.")
    plan = read_json(manifest, "settings", "inputs", "files")
    stage = Stage(run_dir, name, plan["settings"], plan["inputs"], record_type)
    stage.check_files()
    return stage
