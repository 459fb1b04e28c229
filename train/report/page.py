"""Write `report.html` from the template `page.html`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from core.artifacts import write_atomic
from core.progress import log
from core.settings import Settings
from core.tables import format_number
from train.pairs import UNPAIRED
from train.query_measures import MEASURES
from train.report import checks, plots
from train.report.examples import select_examples, select_tokens
from train.report.run_data import load_run
from train.run import Run, load_run_folder


def write_report(path: Path, runs: Sequence[Run], examples: int) -> None:
    """Write the report of one run, or of several runs side by side, as an HTML file.

    `examples` is the number of held-out turns to show; 0 leaves out all text of conversations and documents.
    """
    folder = Path(__file__).parent
    environment = Environment(
        loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"number": format_number, "yaml": settings_yaml}
    page = environment.get_template("page.html").render(
        runs=[load_run(run) for run in runs],
        title=", ".join(run.path.name for run in runs),
        style=Markup((folder / "style.css").read_text()),
        script=Markup((folder / "script.js").read_text()),
        query_measures=MEASURES,
        examples=examples,
        flow_rows=flow_rows,
        checks=checks,
        plots=plots,
        select_examples=select_examples,
        select_tokens=select_tokens,
    )
    write_atomic(path, page)
    log.info("report -> %s", path)


def report_folders(path: Path, run_dirs: Sequence[Path], examples: int | None) -> None:
    """Write the report of run folders. `examples` defaults to the lowest `report.examples` of the runs."""
    runs = [load_run_folder(run_dir) for run_dir in run_dirs]
    fewest = min(run.settings.report.examples for run in runs)
    write_report(path, runs, fewest if examples is None else examples)


def settings_yaml(settings: Settings) -> str:
    return yaml.safe_dump(asdict(settings), sort_keys=False, allow_unicode=True)


def flow_rows(counts: Mapping[str, dict[str, Any]]) -> list[tuple[str, int, str]]:
    """The rows of "Where the data went" for one round: label, count, and reasons for what was dropped."""
    rows = []
    if c := counts.get("candidates"):
        labels = {"merged": "samples equal to another", "cut": "samples cut at the limit"}
        rows.append(("turns", c["total"], reasons("dropped", c["reasons"])))
        rows.append(("candidates", c["distinct"], ", ".join(f"{labels[n]}: {c[n]}" for n in labels if c.get(n))))
    if c := counts.get("rankings"):
        note = f"candidates without documents: {c['empty']}" if c["empty"] else ""
        rows.append(("distinct document lists", c["distinct"], note))
    if c := counts.get("scores"):
        rows.append(("scored", c["lists"] - c["unscored"], reasons("dropped", c["reasons"])))
    if c := counts.get("pairs"):
        unpaired = {reason: number for reason, number in c["dropped"].items() if reason in UNPAIRED}
        filtered = {reason: number for reason, number in c["dropped"].items() if reason not in UNPAIRED}
        rows.append(("pairs", c["total"] + sum(filtered.values()), reasons("turns without a pair", unpaired)))
        rows.append(("kept", c["total"], reasons("dropped", filtered)))
    return rows


def reasons(label: str, counts: Mapping[str, int]) -> str:
    return f"{label}: {', '.join(f'{number} {reason}' for reason, number in counts.items())}" if counts else ""
