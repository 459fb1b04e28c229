"""Aggregate runs of one configuration with different seeds: a table of mean results, and comparisons.

    python -m train.aggregate_seeds runs/quickstart-1 runs/quickstart-2 runs/quickstart-3
    python -m train.aggregate_seeds runs/mtrag-1 runs/mtrag-2 --measures MRR@10 R@10 nDCG@3 F1

The value of a turn is its mean over the runs. Confidence intervals resample conversations, not runs. With several data
sets, the tables for each set follow those for all turns.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from core.artifacts import read_json, read_json_lines
from core.cli import parse_flags, run_command
from core.errors import InputError
from core.schema import Positive, Validated
from retrieval.metrics import DEFAULT
from train.report_tables import (
    ANSWER_MEASURES,
    STATEMENTS,
    PerTurn,
    compare_systems,
    comparison_table,
    label_of,
    mean,
    means_of,
    means_table,
)


def mean_over_runs(runs: list[Path], measures: Sequence[str]) -> tuple[PerTurn, dict[str, str], dict[str, str]]:
    """Average the measures of each turn over runs.

    Returns:
        The mean values (system -> measure -> turn -> value), turn -> conversation, and turn -> data set.

    Raises:
        InputError: a run has no evaluation, or runs differ in their turns or systems.
    """
    if len({run.resolve() for run in runs}) < len(runs):
        raise InputError(f"the same run is given twice: {', '.join(map(str, runs))}.")
    values: dict = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    groups: dict[str, str] = {}
    datasets: dict[str, str] = {}
    for run in runs:
        path = run / "evaluation" / "per_turn.jsonl"
        for number, line in read_json_lines(path):
            try:
                turn, system, groups[line["id"]] = line["id"], line["system"], line["conversation"]
                datasets[turn] = line["dataset"]
                for measure in [measure for measure in measures if measure in line]:
                    if not math.isfinite(line[measure]):
                        raise ValueError(f"`{measure}` is not a finite number")
                    values[system][measure][turn].append(line[measure])
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(f"{path}:{number}: not a record of an evaluation ({error}).") from error
    if not values:
        raise InputError(f"{runs[0]}: the evaluation has none of the measures {', '.join(measures)}.")
    for measure in measures:
        turns = {turn for of_system in values.values() for turn in of_system.get(measure, {})}
        for system, of_system in values.items():
            for turn in sorted(turns):
                number = len(of_system[measure][turn])
                if number != len(runs):
                    raise InputError(
                        f"`{measure}` of `{system}` for the turn `{turn}` is in {number} of {len(runs)} runs; all "
                        "runs must have the same test turns and systems."
                    )
                of_system[measure][turn] = mean(of_system[measure][turn])
    return values, groups, datasets


def tables_of(values: PerTurn, groups: Mapping[str, str], measures: Sequence[str], resamples: int) -> str:
    """Format the result table and the comparisons for the turns in `groups` (turn -> conversation)."""
    selected: PerTurn = {
        system: {
            measure: {turn: value for turn, value in of_turn.items() if turn in groups}
            for measure, of_turn in of_system.items()
        }
        for system, of_system in values.items()
    }
    comparisons = compare_systems(selected, measures, groups, resamples)
    return means_table(means_of(selected), measures) + (f"\n{comparison_table(comparisons)}" if comparisons else "")


@dataclass(kw_only=True)
class PooledFlags(Validated):
    """Flags of the command.

    Args:
        runs: run folders, each with an evaluation on the same test turns.
        measures: columns of the table.
        resamples: bootstrap resamples per comparison.
    """

    runs: list[Path] = field(metadata={"positional": True})
    measures: list[Literal[*DEFAULT, *ANSWER_MEASURES, STATEMENTS]] = field(
        default_factory=lambda: ["MRR@10", "R@10", "EM"]
    )
    resamples: Positive = 10000


def main(argv: list[str] | None = None) -> None:
    flags = parse_flags(PooledFlags, __doc__, argv)
    measures = list(dict.fromkeys(flags.measures))
    values, groups, datasets = mean_over_runs(flags.runs, measures)
    labels = [label_of(read_json(run / "evaluation" / "metrics.json")) for run in flags.runs]
    print(f"mean of {len(flags.runs)} runs, {len(groups)} turns\n")
    print("".join(dict.fromkeys(labels)) + tables_of(values, groups, measures, flags.resamples))
    names = list(dict.fromkeys(datasets.values()))
    for name in names if len(names) > 1 else []:
        members = {turn: group for turn, group in groups.items() if datasets[turn] == name}
        print(f"{name}: {len(members)} turns\n")
        print(tables_of(values, members, measures, flags.resamples))


if __name__ == "__main__":
    run_command(main)
