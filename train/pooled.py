"""Several runs of one configuration together: the result table of their mean, and comparisons over all of them.

    python -m train.pooled runs/quickstart-1 runs/quickstart-2 runs/quickstart-3

A turn's value is its mean over the runs; conversations, not runs, are what is resampled.
"""

import argparse
import math
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
    if len({run.resolve() for run in runs}) < len(runs):
        raise InputError(f"a run is named twice: {', '.join(map(str, runs))}.")
    values: dict = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    groups: dict[str, str] = {}
    for run in runs:
        path = run / "evaluation" / "per_turn.jsonl"
        for number, line in read_json_lines(path):
            try:
                turn, system, groups[line["id"]] = line["id"], line["system"], line["conversation"]
                for measure in set(SHOWN) & line.keys():
                    if not math.isfinite(line[measure]):
                        raise ValueError(f"`{measure}` is no finite number")
                    values[measure][system][turn].append(line[measure])
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(f"{path}:{number}: not a line of an evaluation ({error}).") from error
    if not values:
        raise InputError(f"{runs[0]}: its evaluation has none of {', '.join(SHOWN)}.")
    for measure, systems in values.items():
        turns = {turn for seen in systems.values() for turn in seen}
        for system, seen in systems.items():
            for turn in sorted(turns):
                if len(seen.get(turn, [])) != len(runs):
                    raise InputError(
                        f"`{measure}` of `{system}` for the turn `{turn}` is in {len(seen.get(turn, []))} of "
                        f"{len(runs)} runs; they need the same test turns and systems."
                    )
                seen[turn] = sum(seen[turn]) / len(seen[turn])
    return values, groups


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="run folders with an evaluation of the same test turns")
    parser.add_argument("--resamples", type=int, default=10000, help="resamples per comparison (default 10000)")
    arguments = parser.parse_args()
    if arguments.resamples < 1:
        raise InputError(f"`--resamples` must be at least 1, got {arguments.resamples}.")
    values, groups = mean_over_runs(arguments.runs)
    systems = list(dict.fromkeys(system for measure in SHOWN for system in values.get(measure, {})))
    means = [[name, *(shown(mean(values.get(m, {}).get(name, {}))) for m in SHOWN)] for name in systems]
    print(f"mean of {len(arguments.runs)} runs, {len(groups)} turns\n")
    pooled = any(read_json(run / "evaluation" / "metrics.json").get("pooled") for run in arguments.runs)
    print(label_of(pooled) + grid(["system", *SHOWN], means))
    comparisons = [
        {"a": a, "b": b, "metric": m} | asdict(compare(values[m][a], values[m][b], groups, arguments.resamples))
        for a, b in COMPARED
        for m in SHOWN
        if values.get(m, {}).get(a) and values.get(m, {}).get(b)
    ]
    print(comparison_table(comparisons))


if __name__ == "__main__":
    run_command(main)
