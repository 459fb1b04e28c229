"""Writing `report.html`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from core.artifacts import write_atomic
from core.progress import log
from core.records import Turn
from retrieval.collection import Collection
from train.query_measures import MEASURES
from train.report import checks, plots
from train.report.examples import select_examples, select_tokens
from train.report.run_data import Round, RunData
from train.report_tables import SHOWN

SFT_PANELS = {"loss (should fall and level off)": {"loss": "loss"}}
DPO_PANELS = {
    "loss (should fall)": {"loss": "loss"},
    "margin and accuracy (should rise)": {"rewards/margins": "margin", "rewards/accuracies": "accuracy"},
    "log-probability (rejected falls more)": {"logps/chosen": "chosen", "logps/rejected": "rejected"},
}


@dataclass
class ReportInput:
    """A run with what its report shows of the data.

    Args:
        run: the run.
        train: id -> training turn.
        test: id -> held-out turn; empty without an evaluation.
        collections: data set -> its collection.
    """

    run: RunData
    train: Mapping[str, Turn]
    test: Mapping[str, Turn]
    collections: Mapping[str, Collection]


def write_report(path: Path, inputs: Sequence[ReportInput], examples: int) -> None:
    """Write the report of one run, or of several side by side.

    Args:
        path: of the HTML file.
        inputs: the runs.
        examples: held-out turns that are shown; 0 leaves every text of conversations and documents out.
    """
    folder = Path(__file__).parent
    environment = Environment(
        loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["number"] = lambda value: "" if value is None else f"{value:.3f}"
    page = environment.get_template("page.html").render(
        runs=[run_view(each, examples) for each in inputs],
        title=", ".join(each.run.name for each in inputs),
        style=Markup((folder / "style.css").read_text()),
        script=Markup((folder / "script.js").read_text()),
        query_measures=MEASURES,
        examples=examples,
    )
    write_atomic(path, page)
    log.info("report -> %s", path)


def run_view(each: ReportInput, examples: int) -> dict[str, Any]:
    """What the template shows of one run."""
    run, metrics = each.run, each.run.metrics
    systems = metrics.get("systems", {})
    reward = metrics.get("reward")
    measures = [m for m in dict.fromkeys((*SHOWN, reward)) if any(m in values for values in systems.values())]
    return {
        "run": run,
        "verdict": checks.verdict(run),
        "measures": measures,
        "plots": evaluation_plots(run, measures) if metrics else [],
        "flow": [(each_round, flow_rows(each_round)) for each_round in run.rounds if each_round.counts],
        "rewards": [reward_view(each_round) for each_round in run.rounds if each_round.rewards],
        "data_problems": [p for each_round in run.rounds for p in checks.data_problems(each_round)],
        "gaming": checks.gaming_problems(run),
        "curves": [view for each_round in run.rounds for view in curve_views(each_round)],
        "examples": select_examples(run, each.test, each.collections, run.settings.retrieval.k, examples)
        if examples and metrics
        else [],
        "tokens": select_tokens(run, each.train) if examples else [],
        "settings": yaml.safe_dump(asdict(run.settings), sort_keys=False, allow_unicode=True),
        "versions": run.stages[-1].versions if run.stages else {},
    }


def evaluation_plots(run: RunData, measures: Sequence[str]) -> list[Markup]:
    """All systems with intervals; the verdict's measure by kind of turn and by turn number."""
    metrics, drawn = run.metrics, []
    shown = [m for m in dict.fromkeys((run.measure, "EM", run.metrics.get("reward"))) if m in measures][:3]
    if shown:
        drawn.append(plots.plot_systems(metrics, shown))
    compared = [s for s in ("original", "base", run.final, "reference") if s in metrics["systems"]]
    for parts, label in ((metrics["by_kind"], "kind of turn"), (metrics["by_depth"], "turn number")):
        measured = any(part[system].get(run.measure) for part in parts.values() for system in compared)
        if len(parts) > 1 and measured:
            drawn.append(plots.plot_parts(parts, compared, run.measure, label))
    return [Markup(svg) for svg in drawn]


def flow_rows(each: Round) -> list[tuple[str, int, str]]:
    """Where the data of a round went: what there was, how many, and what was dropped on the way and why."""
    counts = each.counts
    rows = []
    if "candidates" in counts:
        c = counts["candidates"]
        labels = {"merged": "samples equal to another", "cut": "samples cut at the limit"}
        notes = [f"{label}: {c[name]}" for name, label in labels.items() if c.get(name)]
        rows.append(("turns", c["total"], reasons(c.get("reasons", {}))))
        rows.append(("candidates", c["distinct"], ", ".join(notes)))
    if "rankings" in counts:
        c = counts["rankings"]
        note = f"candidates that retrieve nothing: {c['empty']}" if c.get("empty") else ""
        rows.append(("distinct document lists", c["distinct"], note))
    if "scores" in counts:
        c = counts["scores"]
        rows.append(("scored", c["lists"] - c["unscored"], reasons(c.get("reasons", {}))))
    if "pairs" in counts:
        c = counts["pairs"]
        gaps = sum(number for reason, number in c["dropped"].items() if "gap" in reason)
        others = {reason: number for reason, number in c["dropped"].items() if "gap" not in reason}
        rows.append(("pairs", c["total"] + gaps, reasons(others, "turns without a pair: ")))
        rows.append(("kept", c["total"], reasons({r: n for r, n in c["dropped"].items() if "gap" in r})))
    return rows


def reasons(counts: Mapping[str, int], before: str = "dropped: ") -> str:
    return before + ", ".join(f"{number} {reason}" for reason, number in counts.items()) if counts else ""


def reward_view(each: Round) -> dict[str, Any]:
    """The rewards of a round: plots and shares."""
    rewards = each.rewards
    drawn = [Markup(plots.plot_rewards(rewards))] if rewards.scores else []
    drawn += [Markup(plots.plot_ranks(rewards))] if len(rewards.by_rank) > 1 else []
    hits = {side: (sum(found), len(found)) for side, found in rewards.hits.items() if found}
    return {
        "round": each.number,
        "plots": drawn,
        "hits": hits,
        "abstaining": rewards.abstaining,
        "lists": rewards.lists,
        "mean": sum(rewards.scores) / len(rewards.scores) if rewards.scores else None,
    }


def curve_views(each: Round) -> list[dict[str, Any]]:
    """The curves of the training stages of a round, each with its flag."""
    views = []
    for stage, entries in each.logs.items():
        logged = [entry for entry in entries if "loss" in entry]
        name = f"round-{each.number}/{stage}"
        drawn = []
        if len(logged) > 1:
            panels = SFT_PANELS if stage == "sft" else DPO_PANELS
            drawn.append(Markup(plots.plot_curves(logged, panels, f"training curves of {name}")))
        if stage == "dpo" and any(each.lengths.values()):
            drawn.append(Markup(plots.plot_lengths(each.lengths)))
        views.append({"name": name, "plots": drawn, "problem": checks.training_problem(each, stage)})
    return views
