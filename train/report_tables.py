"""The results of the evaluation: measures per turn, means by system and group of turns, comparisons, and their files.

`train.report` writes the HTML report from these files.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from core.artifacts import write_atomic, write_json
from core.json_records import to_json_line
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
STATEMENTS = "statements"  # share of queries that are statements, not questions or keywords
KINDS = ("first", "follow_up", "switch", "return")
DEPTHS = ("1", "2", "3", "4-6", "7+")
SPLIT = ("MRR@10", "EM", "F1")  # measures for each kind of turn and each depth
SHOWN = ("MRR@10", "R@10", "nDCG@3", "EM", "F1")  # measures with intervals and comparisons
POOLED = (
    "Collection: *pooled*, gold passages and similar ones. Results on a pool are higher than on the whole collection "
    "and can only be compared with results on the same pool.\n\n"
)
DEVELOPMENT = (
    "Turns: *development*. Use these results to choose settings, and report those of `data.evaluate_on: test`.\n\n"
)
COMPARED = (
    ("dpo", "base"), ("dpo", "base_examples"), ("dpo", "sft"), ("sft", "base"), ("dpo", "original"),
    ("sft", "original"), ("dpo", "reference"),
)  # fmt: skip
PerTurn = dict[str, dict[str, dict[str, float]]]  # system -> measure -> turn -> value


def measure_all(
    turns: Sequence[Turn], records: Mapping[str, EvaluationRecord], systems: Sequence[str], reward: str
) -> PerTurn:
    """Compute every measure of every system for each turn with the labels that it needs.

    `records` maps the id of a turn to its evaluation; `reward` is the name of the run's reward in the result.
    """
    qrels = {turn.id: turn.relevant for turn in turns}
    values: PerTurn = {}
    for name in systems:
        results = {turn.id: records[turn.id].systems[name] for turn in turns}
        measures = per_query(qrels, strict_run({turn: list(r.hits) for turn, r in results.items()}), DEFAULT)
        measures[STATEMENTS] = {turn: float(states_answer(r.rewrite or r.query)) for turn, r in results.items()}
        answered = [turn for turn in turns if turn.answers and results[turn.id].answer is not None]
        for measure, function in ANSWER_MEASURES.items():
            measures[measure] = {turn.id: function(results[turn.id].answer, turn.answers) for turn in answered}
        measures["key_entropy"] = {t: r.key_entropy for t, r in results.items() if r.key_entropy is not None}
        measures[reward] = {turn: r.reward for turn, r in results.items() if r.reward is not None}
        values[name] = measures
    return values


def mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return sum(values) / len(values) if values else None


def means_of(values: PerTurn) -> dict[str, dict[str, float]]:
    """System -> measure -> mean over turns; measures without a value are left out."""
    return {
        name: {measure: mean(of_turn.values()) for measure, of_turn in measures.items() if of_turn}
        for name, measures in values.items()
    }


def compare_systems(
    values: PerTurn, measures: Sequence[str], groups: Mapping[str, str], resamples: int, seed: int = 0
) -> list[dict[str, Any]]:
    """Compare the pairs of `COMPARED`, each on the turns for which both systems have a value.

    For example, a turn whose query retrieves nothing has no reward. See `retrieval.metrics.compare`.
    """
    rows = []
    for a, b in COMPARED:
        for measure in measures:
            first, second = values.get(a, {}).get(measure, {}), values.get(b, {}).get(measure, {})
            shared = {turn: value for turn, value in first.items() if turn in second}
            if shared:
                difference = compare(shared, second, groups, resamples, seed)
                rows.append({"a": a, "b": b, "metric": measure} | asdict(difference))
    return rows


def evaluation_metrics(
    values: PerTurn, turns: Sequence[Turn], records: Mapping[str, EvaluationRecord], settings: Settings
) -> dict[str, Any]:
    """The content of `metrics.json`: counts, means and intervals of each system, means by data set, kind of turn and
    depth, comparisons, and measures of the queries."""
    groups, reward = {turn.id: turn.group for turn in turns}, reward_label(settings.scoring)
    resamples, seed, interval_measures = settings.evaluation.resamples, settings.run.seed, (*SHOWN, reward)
    sets = list(dict.fromkeys(turn.dataset for turn in turns))
    judged = sum(bool(turn.gold) for turn in turns)
    shuffled = (records[turn.id].shuffled_reward for turn in turns)
    return {
        "turns": {"evaluated": judged, "total": len(turns), "answered": sum(bool(turn.answers) for turn in turns)},
        "retriever": asdict(settings.retrieval),
        "pooled": settings.data.pool is not None,
        "evaluated_on": settings.data.evaluate_on,
        "systems": means_of(values),
        "intervals": {
            name: {
                m: mean_interval(measures[m], groups, resamples, seed) for m in interval_measures if measures.get(m)
            }
            for name, measures in values.items()
        },
        "by_dataset": split(values, [(turn.id, turn.dataset) for turn in turns], sets, measures_of(values))
        if len(sets) > 1
        else {},
        "by_kind": split(values, [(turn.id, turn.kind) for turn in turns], KINDS, SPLIT),
        "by_depth": split(values, [(turn.id, depth_of(turn)) for turn in turns], DEPTHS, SPLIT),
        "comparisons": compare_systems(values, interval_measures, groups, resamples, seed),
        "reward": reward,
        "shuffled_reward": mean(value for value in shuffled if value is not None),
        "queries": {
            name: measure_queries(turns, [records[turn.id].systems[name] for turn in turns]) for name in values
        },
    }


def depth_of(turn: Turn) -> str:
    """The group of `DEPTHS` that a turn belongs to."""
    return str(turn.depth) if turn.depth <= 3 else "4-6" if turn.depth <= 6 else "7+"


def split(
    values: PerTurn, parts: Iterable[tuple[str, str]], order: Sequence[str], measures: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Average measures over each group of turns.

    `parts` are pairs of a turn and its group; turns whose group is empty are left out. The groups in `order` come
    first; others follow, sorted.

    Returns:
        group -> number of `turns`, and system -> measure -> mean (None if no turn of the group has the labels).
    """
    members: dict[str, set[str]] = defaultdict(set)
    for turn, part in parts:
        members[part].add(turn)
    members.pop("", None)
    return {
        part: {"turns": len(members[part])}
        | {
            name: {
                m: mean(value for turn, value in of_system[m].items() if turn in members[part])
                for m in measures
                if of_system.get(m)
            }
            for name, of_system in values.items()
        }
        for part in [*(p for p in order if p in members), *sorted(members.keys() - {*order})]
    }


def label_of(metrics: dict[str, Any]) -> str:
    """Notes to print above a table: that the collection is pooled, and that the turns are development turns."""
    development = metrics.get("evaluated_on") == "development"
    return (POOLED if metrics["pooled"] else "") + (DEVELOPMENT if development else "")


def table_of(metrics: dict[str, Any]) -> str:
    """Format the metrics as Markdown tables."""
    systems = metrics["systems"]
    columns = measures_of(systems)
    parts = [label_of(metrics) + means_table(systems, columns)]
    if metrics["by_dataset"]:
        rows = [
            [dataset, str(part["turns"]), name, *(format_number(part[name].get(c)) for c in columns)]
            for dataset, part in metrics["by_dataset"].items()
            for name in systems
        ]
        parts.append(markdown_table(["dataset", "turns", "system", *columns], rows))
    for title, cells in (("kind", metrics["by_kind"]), ("depth", metrics["by_depth"])):
        for measure in (m for m in SPLIT if m in columns and cells):
            rows = [
                [part, str(c["turns"]), *(format_number(c[name].get(measure)) for name in systems)]
                for part, c in cells.items()
            ]
            parts.append(markdown_table([title, "turns", *(f"{name} {measure}" for name in systems)], rows))
    if metrics["comparisons"]:
        parts.append(comparison_table(metrics["comparisons"]))
    return "\n".join(parts)


def measures_of(systems: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The measures that any of the systems has."""
    return list(dict.fromkeys(measure for measures in systems.values() for measure in measures))


def means_table(systems: Mapping[str, Mapping[str, float]], measures: Sequence[str]) -> str:
    """Format a Markdown table with a row for each system and a column for each measure."""
    rows = [[name, *(format_number(values.get(m)) for m in measures)] for name, values in systems.items()]
    return markdown_table(["system", *measures], rows)


def comparison_table(comparisons: Sequence[dict[str, Any]]) -> str:
    """Format `comparisons` of `metrics.json` as a Markdown table."""
    rows = [
        [f"{c['a']} - {c['b']}", c["metric"], f"{c['difference']:+.3f}", f"[{c['low']:+.3f}, {c['high']:+.3f}]",
         f"{c['p']:.4f}"]
        for c in comparisons
    ]  # fmt: skip
    return markdown_table(["comparison", "metric", "difference", "95% interval", "p"], rows)


def write_tables(stage: Stage, settings: Settings, turns: Sequence[Turn], systems: Sequence[str]) -> None:
    """Write runs, qrels, `per_turn.jsonl`, `metrics.json` and `table.md` beside the records, and print the means."""
    records, folder = {record.id: record for record in stage}, stage.folder
    values = measure_all(turns, records, systems, reward_label(settings.scoring))
    metrics = evaluation_metrics(values, turns, records, settings)
    write_qrels(folder / "qrels.txt", {turn.id: turn.relevant for turn in turns})
    for name in systems:
        write_run(folder / f"{name}.run", {turn.id: list(records[turn.id].systems[name].hits) for turn in turns}, name)
    rows = [
        {"id": turn.id, "dataset": turn.dataset, "conversation": turn.group, "kind": turn.kind, "depth": turn.depth}
        | {"system": name, "query": result.query, "answer": result.answer}
        | {measure: of_turn[turn.id] for measure, of_turn in values[name].items() if turn.id in of_turn}
        for turn in turns
        for name, result in records[turn.id].systems.items()
    ]
    write_atomic(folder / "per_turn.jsonl", map(to_json_line, rows))
    write_json(folder / "metrics.json", metrics)
    write_atomic(folder / "table.md", table_of(metrics))
    counts = metrics["turns"]
    log.info("\nevaluated %d turns, %d of them with relevant documents", counts["total"], counts["evaluated"])
    log.info("\n%s", label_of(metrics) + means_table(metrics["systems"], measures_of(metrics["systems"])))
    log.info("comparisons, and the table split by kind and depth: %s", folder / "table.md")
