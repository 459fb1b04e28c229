"""From evaluation records to figures: measures per turn, means by system and kind, comparisons, files, table."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from core.artifacts import Stage, write_atomic, write_json
from core.records import Hit, Turn, group_of
from core.runtime import log
from core.settings import Settings
from retrieval.metrics import DEFAULT, compare, per_query
from retrieval.trec import strict_run, write_qrels, write_run
from scoring.answers import contains, exact_match, token_f1

ANSWER_MEASURES = {"EM": exact_match, "F1": token_f1, "contains": contains}
KINDS = ("first", "follow_up", "switch", "return")
COMPARED = (("dpo", "base"), ("dpo", "sft"), ("sft", "base"), ("dpo", "original"))
PerTurn = dict[str, dict[str, dict[str, float]]]  # system -> measure -> turn -> value


def measure_all(turns: Sequence[Turn], records: dict[str, dict[str, Any]], systems: Sequence[str]) -> PerTurn:
    """Every measure of every system for every turn that has the labels for it."""
    qrels = {turn.id: turn.relevant for turn in turns}
    values: PerTurn = {}
    for name in systems:
        rankings = {t.id: [Hit(*hit) for hit in records[t.id]["systems"][name]["hits"]] for t in turns}
        values[name] = per_query(qrels, strict_run(rankings), DEFAULT)
        given = {turn.id: records[turn.id]["systems"][name] for turn in turns}
        if any("answer" in record for record in given.values()):
            for measure, function in ANSWER_MEASURES.items():
                values[name][measure] = {t.id: function(given[t.id]["answer"], t.answers) for t in turns if t.answers}
            known = {turn.id: given[turn.id]["key_entropy"] for turn in turns}
            values[name]["key_entropy"] = {turn: value for turn, value in known.items() if value is not None}
    return values


def mean(values: dict[str, float]) -> float | None:
    return sum(values.values()) / len(values) if values else None


def figures(values: PerTurn, turns: Sequence[Turn], settings: Settings) -> dict[str, Any]:
    """What `metrics.json` holds: counts, means by system, means by turn kind, comparisons."""
    groups = group_of(turns)
    judged = sum(any(grade >= 1 for grade in turn.relevant.values()) for turn in turns)
    systems = {name: {m: mean(v) for m, v in measures.items() if v} for name, measures in values.items()}
    kinds = {turn.kind for turn in turns} - {""}
    present = [kind for kind in KINDS if kind in kinds] + sorted(kinds - {*KINDS})
    by_kind = {
        kind: {"turns": len(ids)}
        | {
            name: {
                m: mean({t: x for t, x in v.items() if t in ids})
                for m, v in measures.items()
                if m in ("MRR@10", "EM") and v
            }
            for name, measures in values.items()
        }
        for kind in present
        for ids in [{turn.id for turn in turns if turn.kind == kind}]
    }
    comparisons = [
        {"a": a, "b": b, "metric": measure}
        | asdict(
            compare(values[a][measure], values[b][measure], groups, settings.evaluation.resamples, settings.run.seed)
        )
        for a, b in COMPARED
        if a in values and b in values
        for measure in ("MRR@10", "R@10", "EM", "F1")
        if values[a].get(measure)
    ]
    return {
        "turns": {"evaluated": judged, "total": len(turns), "answered": sum(bool(turn.answers) for turn in turns)},
        "retriever": asdict(settings.retrieval),
        "systems": systems,
        "by_kind": by_kind,
        "comparisons": comparisons,
    }


def table_of(made: dict[str, Any]) -> str:
    """The figures as Markdown tables."""
    systems = made["systems"]
    columns = list(dict.fromkeys(measure for measures in systems.values() for measure in measures))
    rows = [[name, *(shown(measures.get(c)) for c in columns)] for name, measures in systems.items()]
    parts = [grid(["system", *columns], rows)]
    if made["by_kind"]:
        kinds = made["by_kind"].items()
        rows = [[kind, str(cell["turns"]), *(shown(cell[s].get("MRR@10")) for s in systems)] for kind, cell in kinds]
        parts.append(grid(["kind", "turns", *(f"{name} MRR@10" for name in systems)], rows))
    if made["comparisons"]:
        parts.append(comparison_table(made["comparisons"]))
    return "\n".join(parts)


def shown(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def comparison_table(comparisons: Sequence[dict[str, Any]]) -> str:
    """Rows of `metrics.json`'s `comparisons` as a Markdown table."""
    rows = [
        [f"{c['a']} - {c['b']}", c["metric"], f"{c['difference']:+.3f}", f"[{c['low']:+.3f}, {c['high']:+.3f}]",
         f"{c['p']:.4f}"]
        for c in comparisons
    ]  # fmt: skip
    return grid(["comparison", "metric", "difference", "95% interval", "p"], rows)


def grid(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table whose columns line up in plain text too."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]]
    lines.insert(1, " | ".join("-" * width for width in widths))
    return "".join(f"| {line} |\n" for line in lines)


def write_report(stage: Stage, settings: Settings, turns: Sequence[Turn], systems: Sequence[str]) -> dict[str, Any]:
    """Write runs, qrels, `per_turn.jsonl`, `metrics.json` and `table.md` beside the records, and print the table."""
    records = {record["id"]: record for record in stage.records()}
    values = measure_all(turns, records, systems)
    made = figures(values, turns, settings)
    write_qrels(stage.folder / "qrels.txt", {turn.id: turn.relevant for turn in turns})
    for name in systems:
        hits = {turn.id: [Hit(*hit) for hit in records[turn.id]["systems"][name]["hits"]] for turn in turns}
        write_run(stage.folder / f"{name}.run", hits, name)
    lines = [
        {
            "id": turn.id,
            "conversation": turn.group,
            "kind": turn.kind,
            "system": name,
            "query": records[turn.id]["systems"][name]["query"],
        }
        | {"answer": records[turn.id]["systems"][name].get("answer")}
        | {measure: per[turn.id] for measure, per in values[name].items() if turn.id in per}
        for turn in turns
        for name in systems
    ]
    write_atomic(
        stage.folder / "per_turn.jsonl", "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    )
    write_json(stage.folder / "metrics.json", made)
    table = table_of(made)
    write_atomic(stage.folder / "table.md", table)
    counts = made["turns"]
    without = counts["total"] - counts["evaluated"]
    note = f" ({without} without relevant documents)" if without else ""
    log.info("\nevaluated %d of %d turns%s\n\n%s", counts["evaluated"], counts["total"], note, table)
    return made
