"""Several runs of one configuration together: the result table of their mean, and comparisons over all of them.

    python -m train.pooled runs/quickstart-1 runs/quickstart-2 runs/quickstart-3

A turn's value is its mean over the runs; conversations, not runs, are what is resampled.
"""

import argparse
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path

from core.artifacts import read_json, read_json_lines
from core.errors import InputError
from core.runtime import run_command
from retrieval.metrics import compare
from train.tables import COMPARED, comparison_table, grid, label_of, mean, shown

SHOWN = ("MRR@10", "R@10", "EM")


def mean_over_runs(runs: list[Path]) -> tuple[dict[str, dict[str, dict[str, float]]], dict[str, str]]:
    """measure -> system -> turn -> mean value, and turn -> conversation.

    Raises:
        InputError: a run has no evaluation, or other turns than the first.
    """
    values: dict = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    groups: dict[str, str] = {}
    for run in runs:
        for _, line in read_json_lines(run / "evaluation" / "per_turn.jsonl"):
            groups[line["id"]] = line["conversation"]
            for measure in SHOWN:
                if measure in line:
                    values[measure][line["system"]][line["id"]].append(line[measure])
    for systems in values.values():
        for turns in systems.values():
            for turn, seen in turns.items():
                if len(seen) != len(runs):
                    raise InputError(
                        f"the turn `{turn}` is in {len(seen)} of {len(runs)} runs; they need the same test turns."
                    )
                turns[turn] = sum(seen) / len(seen)
    return values, groups


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="run folders with an evaluation of the same test turns")
    parser.add_argument("--resamples", type=int, default=10000, help="resamples per comparison (default 10000)")
    arguments = parser.parse_args()
    values, groups = mean_over_runs(arguments.runs)
    systems = list(values[SHOWN[0]])
    means = [[name, *(shown(mean(values[m].get(name, {}))) for m in SHOWN)] for name in systems]
    print(f"mean of {len(arguments.runs)} runs, {len(groups)} turns\n")
    pooled = any(read_json(run / "evaluation" / "metrics.json").get("pooled") for run in arguments.runs)
    print(label_of(pooled) + grid(["system", *SHOWN], means))
    comparisons = [
        {"a": a, "b": b, "metric": m} | asdict(compare(values[m][a], values[m][b], groups, arguments.resamples))
        for a, b in COMPARED
        for m in SHOWN
        if values[m].get(a) and values[m].get(b)
    ]
    print(comparison_table(comparisons))


if __name__ == "__main__":
    run_command(main)
