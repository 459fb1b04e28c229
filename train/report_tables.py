"""From evaluation records to figures: measures per turn, means by system and part, comparisons, files, table."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from core.artifacts import write_atomic, write_json
from core.progress import log
from core.records import EvaluationRecord, Turn
from core.settings import Settings
from core.stages import Stage
from core.tables import format_number, markdown_table
from core.trec import strict_run, write_qrels, write_run
from retrieval.metrics import DEFAULT, compare, mean_interval, per_query
from scoring.answers import contains, exact_match, states_answer, token_f1
from scoring.registry import reward_label
from train.query_measures import measure_queries

ANSWER_MEASURES = {"EM": exact_match, "F1": token_f1, "contains": contains}
STATEMENTS = "statements"  # share of queries that state an answer instead of asking
KINDS = ("first", "follow_up", "switch", "return")
DEPTHS = ("1", "2", "3", "4-6", "7+")
SPLIT = ("MRR@10", "EM", "F1")  # measures that are shown for each kind of turn and each depth
SHOWN = ("MRR@10", "R@10", "nDCG@3", "EM", "F1")  # measures with intervals and comparisons
POOLED = (
    "Collection: *pooled*, gold passages and some that are like them. Figures on a pool are higher than on the whole "
    "collection and compare with others on the same pool only.\n\n"
)
DEVELOPMENT = (
    "Turns: *development*. Settings are chosen with them; figures to report come from `data.evaluate_on: test`.\n\n"
)
COMPARED = (
    ("dpo", "base"), ("dpo", "base_examples"), ("dpo", "sft"), ("sft", "base"), ("dpo", "original"),
    ("dpo", "reference"),
)  # fmt: skip
PerTurn = dict[str, dict[str, dict[str, float]]]  # system -> measure -> turn -> value


def measure_all(
    turns: Sequence[Turn], records: dict[str, EvaluationRecord], systems: Sequence[str], reward: str
) -> PerTurn:
    """Every measure of every system for every turn that has the labels for it; the run's reward is named `reward`."""
    qrels = {turn.id: turn.relevant for turn in turns}
    values: PerTurn = {}
    for name in systems:
        results = {turn.id: records[turn.id].systems[name] for turn in turns}
        rankings = {turn: list(result.hits) for turn, result in results.items()}
        values[name] = per_query(qrels, strict_run(rankings), DEFAULT)
        values[name][STATEMENTS] = {
            turn: float(states_answer(result.rewrite or result.query)) for turn, result in results.items()
        }
        answered = [turn for turn in turns if results[turn.id].answer is not None]
        if answered:
            for measure, function in ANSWER_MEASURES.items():
                values[name][measure] = {
                    turn.id: function(results[turn.id].answer, turn.answers) for turn in answered if turn.answers
                }
            values[name]["key_entropy"] = {
                turn: result.key_entropy for turn, result in results.items() if result.key_entropy is not None
            }
            values[name][reward] = {
                turn: result.reward for turn, result in results.items() if result.reward is not None
            }
    return values


def mean(values: dict[str, float]) -> float | None:
    return sum(values.values()) / len(values) if values else None


def figures(
    values: PerTurn, turns: Sequence[Turn], records: dict[str, EvaluationRecord], settings: Settings
) -> dict[str, Any]:
    """What `metrics.json` holds: counts, means with intervals by system, means by data set, kind of turn and depth,
    comparisons, and what the queries look like."""
    groups, reward = {turn.id: turn.group for turn in turns}, reward_label(settings.scoring)
    resamples, seed = settings.evaluation.resamples, settings.run.seed
    judged = sum(any(grade >= 1 for grade in turn.relevant.values()) for turn in turns)
    systems = {name: {m: mean(v) for m, v in measures.items() if v} for name, measures in values.items()}
    comparisons = [
        {"a": a, "b": b, "metric": measure}
        | asdict(compare(values[a][measure], values[b][measure], groups, resamples, seed))
        for a, b in COMPARED
        if a in values and b in values
        for measure in (*SHOWN, reward)
        if values[a].get(measure) and values[a][measure].keys() == values[b][measure].keys()
    ]
    return {
        "turns": {"evaluated": judged, "total": len(turns), "answered": sum(bool(turn.answers) for turn in turns)},
        "retriever": asdict(settings.retrieval),
        "pooled": settings.data.pool is not None,
        "evaluated_on": settings.data.evaluate_on,
        "systems": systems,
        "intervals": {
            name: {m: mean_interval(measures[m], groups, resamples, seed) for m in (*SHOWN, reward) if measures.get(m)}
            for name, measures in values.items()
        },
        "by_dataset": by_dataset(values, turns),
        "by_kind": split(values, {turn.id: turn.kind for turn in turns}, KINDS, SPLIT),
        "by_depth": split(values, {turn.id: depth_of(turn) for turn in turns}, DEPTHS, SPLIT),
        "comparisons": comparisons,
        "reward": reward,
        "shuffled_reward": mean(
            {each.id: each.shuffled_reward for each in records.values() if each.shuffled_reward is not None}
        ),
        "queries": {
            name: measure_queries(turns, [records[turn.id].systems[name] for turn in turns]) for name in values
        },
    }


def depth_of(turn: Turn) -> str:
    """The class of depths that a turn is counted in."""
    return str(turn.depth) if turn.depth <= 3 else "4-6" if turn.depth <= 6 else "7+"


def by_dataset(values: PerTurn, turns: Sequence[Turn]) -> dict[str, dict[str, Any]]:
    """Means of every measure for each data set, where there are several."""
    set_of = {turn.id: turn.dataset for turn in turns}
    names = list(dict.fromkeys(set_of.values()))
    measures = list(dict.fromkeys(measure for of_system in values.values() for measure in of_system))
    return split(values, set_of, names, measures) if len(names) > 1 else {}


def split(
    values: PerTurn, part_of: dict[str, str], order: Sequence[str], measures: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Means of some measures for each part of the turns.

    Args:
        values: every measure of every system for every turn.
        part_of: turn -> part; turns whose part is empty are left out.
        order: parts in the order to show; others come after them, sorted.
        measures: the measures.

    Returns:
        part -> number of `turns`, and system -> measure -> mean (None where no turn of the part has the labels).
    """
    members: dict[str, set[str]] = {}
    for turn, part in part_of.items():
        if part:
            members.setdefault(part, set()).add(turn)
    present = [part for part in order if part in members] + sorted(members.keys() - {*order})
    return {
        part: {"turns": len(members[part])}
        | {
            name: {
                m: mean({turn: value for turn, value in of_system[m].items() if turn in members[part]})
                for m in measures
                if of_system.get(m)
            }
            for name, of_system in values.items()
        }
        for part in present
    }


def label_of(metrics: dict[str, Any]) -> str:
    """What stands above a table of these figures: that the collection is pooled, that the turns are not the test's."""
    return (POOLED if metrics.get("pooled") else "") + (
        DEVELOPMENT if metrics.get("evaluated_on") == "development" else ""
    )


def table_of(metrics: dict[str, Any]) -> str:
    """The figures as Markdown tables."""
    systems = metrics["systems"]
    columns = list(dict.fromkeys(measure for measures in systems.values() for measure in measures))
    rows = [[name, *(format_number(measures.get(c)) for c in columns)] for name, measures in systems.items()]
    parts = [label_of(metrics) + markdown_table(["system", *columns], rows)]
    if metrics["by_dataset"]:
        rows = [
            [dataset, str(part["turns"]), name, *(format_number(part[name].get(c)) for c in columns)]
            for dataset, part in metrics["by_dataset"].items()
            for name in systems
        ]
        parts.append(markdown_table(["dataset", "turns", "system", *columns], rows))
    for title, cells in (("kind", metrics["by_kind"].items()), ("depth", metrics["by_depth"].items())):
        for measure in (m for m in SPLIT if m in columns and cells):
            rows = [
                [part, str(c["turns"]), *(format_number(c[name].get(measure)) for name in systems)]
                for part, c in cells
            ]
            parts.append(markdown_table([title, "turns", *(f"{name} {measure}" for name in systems)], rows))
    if metrics["comparisons"]:
        parts.append(comparison_table(metrics["comparisons"]))
    return "\n".join(parts)


def comparison_table(comparisons: Sequence[dict[str, Any]]) -> str:
    """Rows of `metrics.json`'s `comparisons` as a Markdown table."""
    rows = [
        [f"{c['a']} - {c['b']}", c["metric"], f"{c['difference']:+.3f}", f"[{c['low']:+.3f}, {c['high']:+.3f}]",
         f"{c['p']:.4f}"]
        for c in comparisons
    ]  # fmt: skip
    return markdown_table(["comparison", "metric", "difference", "95% interval", "p"], rows)


def write_tables(stage: Stage, settings: Settings, turns: Iterable[Turn], systems: Sequence[str]) -> dict[str, Any]:
    """Write runs, qrels, `per_turn.jsonl`, `metrics.json` and `table.md` beside the records, and print the table."""
    turns, records, folder = list(turns), {record.id: record for record in stage}, stage.folder
    values = measure_all(turns, records, systems, reward_label(settings.scoring))
    metrics = figures(values, turns, records, settings)
    write_qrels(folder / "qrels.txt", {turn.id: turn.relevant for turn in turns})
    for name in systems:
        write_run(folder / f"{name}.run", {turn.id: list(records[turn.id].systems[name].hits) for turn in turns}, name)
    rows = [
        {
            "id": turn.id,
            "dataset": turn.dataset,
            "conversation": turn.group,
            "kind": turn.kind,
            "depth": turn.depth,
            "system": name,
            "query": records[turn.id].systems[name].query,
            "answer": records[turn.id].systems[name].answer,
        }
        | {measure: per[turn.id] for measure, per in values[name].items() if turn.id in per}
        for turn in turns
        for name in systems
    ]
    write_atomic(folder / "per_turn.jsonl", (json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    write_json(folder / "metrics.json", metrics)
    table = table_of(metrics)
    write_atomic(folder / "table.md", table)
    counts = metrics["turns"]
    without = counts["total"] - counts["evaluated"]
    note = f" ({without} without relevant documents)" if without else ""
    log.info("\nevaluated %d of %d turns%s\n\n%s", counts["evaluated"], counts["total"], note, table)
    return metrics
