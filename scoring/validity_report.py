"""Compute win rates and tau-b from the scores of `scoring.validity`, and write them as table and plot."""

import io
import math
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from scipy.stats import binomtest, kendalltau

from core.records import CheckedQuestion
from core.tables import format_number, markdown_table
from scoring.answers import abstains, exact_match
from scoring.validity_cases import Case

GOLD, NOISE = "gold over without", "random over retrieved"


def win_rate(pairs: Iterable[tuple[float | None, float | None]]) -> dict[str, Any]:
    """Compute how often the first value of a pair is higher than the second. Ties count half.

    Returns:
        `rate`, `wins`, `losses`, `ties`, `without_value`, and `p` of the two-sided sign test without ties.
    """
    pairs = list(pairs)
    decided = [pair for pair in pairs if None not in pair]
    wins, losses = sum(a > b for a, b in decided), sum(a < b for a, b in decided)
    ties = len(decided) - wins - losses
    return {
        "rate": (wins + 0.5 * ties) / len(decided) if decided else None,
        "wins": wins,
        "losses": losses,
        "ties": ties,
        "without_value": len(pairs) - len(decided),
        "p": binomtest(wins, wins + losses).pvalue if wins + losses else 1.0,
    }


def validity_results(
    cases: Sequence[Case], records: Sequence[CheckedQuestion], names: Sequence[str]
) -> dict[str, Any]:
    """The content of `validity.json`, except model and settings: `records` are the scores of `cases`."""
    list_names = list(cases[0].lists)  # the same in every case
    answers = [answer for record in records for answer in record.answers.values()]
    right = [
        {name: exact_match(record.answers[name], item.answers) for name, item in case.lists.items() if item.answers}
        for case, record in zip(cases, records, strict=True)
    ]

    def wins(reward: str, first: str, second: str) -> dict[str, Any]:
        if first not in list_names:
            return win_rate([])
        return win_rate((record.values[first][reward], record.values[second][reward]) for record in records)

    rewards = {}
    for name in names:
        pairs = [
            (record.values[list_name][name], correct)
            for record, right_lists in zip(records, right, strict=True)
            for list_name, correct in right_lists.items()
            if record.values[list_name][name] is not None
        ]
        tau = kendalltau(*zip(*pairs, strict=True)).statistic if len(pairs) > 1 else math.nan
        rewards[name] = {
            GOLD: wins(name, "gold", "without"),
            NOISE: wins(name, "random", "retrieved"),
            "tau_b": None if math.isnan(tau) else float(tau),
            "seconds_per_item": fmean(record.seconds[name] for record in records),
        }
    shares = {name: [lists[name] for lists in right if name in lists] for name in list_names}
    return {
        "questions": len(cases),
        "lists": len(answers),
        "answers_right": {name: fmean(share or [0.0]) for name, share in shares.items()} if any(right) else None,
        "abstaining": sum(map(abstains, answers)) / len(answers),
        "rewards": rewards,
    }


def table_of(report: dict[str, Any]) -> str:
    """Format the results in Markdown."""
    header = ["reward", "gold list wins", "sign test p", "tau-b with right answers", NOISE, "ms per list"]
    rows = []
    for name, reward in report["rewards"].items():
        gold, noise, milliseconds = reward[GOLD], reward[NOISE], 1000 * reward["seconds_per_item"]
        numbers = [gold["rate"], gold["p"], reward["tau_b"], noise["rate"], milliseconds]
        rows.append([name, *map(format_number, numbers, (".3f", ".2g", ".3f", ".3f", ".1f"))])
    lines = [markdown_table(header, rows), f"{report['questions']} questions, {report['lists']} document lists."]
    if report["answers_right"]:
        shares = ", ".join(f"{name} {share:.1%}" for name, share in report["answers_right"].items())
        lines.append(f"Answers right, by list: {shares}.")
    lines.append(f"Answers that abstain: {report['abstaining']:.1%}.")
    return "\n".join(lines) + "\n"


def plot_of(report: dict[str, Any]) -> str:
    """Plot the win rates as bars, in SVG."""
    rates = {name: reward[GOLD]["rate"] for name, reward in report["rewards"].items()}
    names = [name.replace("$", r"\$") for name in rates]  # `$` would start a formula
    figure = Figure(figsize=(7, 1 + 0.3 * len(rates)), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh(names, [rate or 0.0 for rate in rates.values()])
    axes.bar_label(bars, ["no value" if rate is None else f"{rate:.2f}" for rate in rates.values()], padding=3)
    axes.axvline(0.5, color="gray", linestyle="--")
    axes.set(xlim=(0, 1.1), title="Questions in which the list with the answer scores higher")
    axes.invert_yaxis()
    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none"}):  # keep text as text
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
