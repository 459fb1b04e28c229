"""Several runs of one configuration together: the result table of their mean, and comparisons over all of them.

    python -m train.aggregate_seeds runs/quickstart-1 runs/quickstart-2 runs/quickstart-3
    python -m train.aggregate_seeds runs/mtrag-1 runs/mtrag-2 --measures MRR@10 R@10 nDCG@3 F1

A turn's value is its mean over the runs; conversations, not runs, are what is resampled. With several data sets, the
tables of each set follow those of all turns.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from core.artifacts import read_json, read_json_lines
from core.cli import parse_flags, run_command
from core.errors import InputError
from core.schema import Positive, Validated
from core.tables import format_number, markdown_table
from retrieval.metrics import DEFAULT, compare
from train.report_tables import (
    ANSWER_MEASURES,
    COMPARED,
    STATEMENTS,
    comparison_table,
    label_of,
    mean,
)

Values = dict[str, dict[str, dict[str, float]]]  # measure -> system -> turn -> value


def mean_over_runs(runs: list[Path], measures: Sequence[str]) -> tuple[Values, dict[str, str], dict[str, str]]:
    """The mean value of every turn, turn -> conversation, and turn -> data set.

    Raises:
        InputError: a run has no evaluation, or other turns than the first.
    """
    if len({run.resolve() for run in runs}) < len(runs):
        raise InputError(f"a run is named twice: {', '.join(map(str, runs))}.")
    values: dict = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    groups: dict[str, str] = {}
    datasets: dict[str, str] = {}
    for run in runs:
        path = run / "evaluation" / "per_turn.jsonl"
        for number, line in read_json_lines(path):
            try:
                turn, system, groups[line["id"]] = line["id"], line["system"], line["conversation"]
                datasets[turn] = line.get("dataset", "")
                for measure in set(measures) & line.keys():
                    if not math.isfinite(line[measure]):
                        raise ValueError(f"`{measure}` is no finite number")
                    values[measure][system][turn].append(line[measure])
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(f"{path}:{number}: not a line of an evaluation ({error}).") from error
    if not values:
        raise InputError(f"{runs[0]}: its evaluation has none of {', '.join(measures)}.")
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
    return values, groups, datasets


def tables_of(values: Values, groups: dict[str, str], measures: Sequence[str], resamples: int) -> str:
    """The result table of some turns, and their comparisons.

    Args:
        values: of every turn.
        groups: the turns -> conversation; other turns are left out.
        measures: columns of the table.
        resamples: of every comparison.
    """
    own: Values = {
        measure: {
            system: {turn: value for turn, value in seen.items() if turn in groups} for system, seen in systems.items()
        }
        for measure, systems in values.items()
    }
    systems = list(dict.fromkeys(system for measure in measures for system in own.get(measure, {})))
    means = [[name, *(format_number(mean(own.get(m, {}).get(name, {}))) for m in measures)] for name in systems]
    comparisons = [
        {"a": a, "b": b, "metric": m} | asdict(compare(own[m][a], own[m][b], groups, resamples))
        for a, b in COMPARED
        for m in measures
        if own.get(m, {}).get(a) and own.get(m, {}).get(b)
    ]
    return markdown_table(["system", *measures], means) + (f"\n{comparison_table(comparisons)}" if comparisons else "")


@dataclass(kw_only=True)
class PooledFlags(Validated):
    """Flags of the command.

    Args:
        runs: run folders with an evaluation of the same test turns.
        measures: columns of the table.
        resamples: resamples per comparison.
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
