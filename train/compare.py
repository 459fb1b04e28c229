"""Several rewards in one go: the same candidates and rankings, then scores, pairs, training and evaluation for each.

    python -m train.compare --rewards key_entropy udcg reciprocal_rank --config configs/quickstart.yaml \\
        --run.dir runs/rewards --run.limit 300
    python -m train.compare --rewards delta_seper_soft --config configs/quickstart.yaml --run.dir runs/rewards \\
        --run.limit 300 --scoring.entailment exact

Writes a whole run for each reward in `<run>/rewards/<reward>`, and `<run>/rewards/table.md`. Rerun the command to
resume. `--rewards NAME...` takes any value of `scoring.reward`; `key_entropy@logged` and `key_entropy@generated` also
set `scoring.answer`. Each reward trains and evaluates anew, as long as a run does; `--run.limit N` takes the first N
turns. All other flags are those of train/dpo.py; its `--help` lists them.
"""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from core.artifacts import read_json, write_atomic
from core.cli import parse_known_flags, read_settings, run_command
from core.data_paths import same_data
from core.errors import InputError
from core.runtime import log, process, set_up_logging, wait_for_all
from core.schema import Validated
from core.settings import Settings
from scoring.labels import check_reward_name, scoring_of
from scoring.scores import check_scoring
from train.dpo import prepare, run_all
from train.tables import grid, label_of, shown

SHARED = ("candidates", "rankings")
SYSTEMS = ("base", "sft", "dpo")


def compare_rewards(settings: Settings, rewards: list[str]) -> None:
    """A run for each reward, and the table."""
    prepare(settings)
    made = [
        replace(
            settings,
            run=replace(settings.run, dir=str(settings.run_dir / "rewards" / reward), redo_from=None, until=None),
            data=same_data(settings),
            scoring=replace(settings.scoring, **scoring_of(reward)),
        )
        for reward in rewards
    ]
    for one in made:
        check_scoring(one)
    run_all(replace(settings, run=replace(settings.run, until="rankings")))
    for one in made:
        for stage in SHARED:
            if process()[0] == 0 and not (one.run_dir / stage).exists():
                copy_whole(settings.run_dir / stage, one.run_dir / stage)
        wait_for_all()
        run_all(one)
    if process()[0] == 0:
        table = table_of([one.run_dir for one in made])
        write_atomic(settings.run_dir / "rewards" / "table.md", table)
        log.info("\n%s", table)


def copy_whole(source: Path, target: Path) -> None:
    """Copy a folder so that it is there whole or not at all."""
    temporary = target.with_name(f".{target.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(source, temporary)
    temporary.rename(target)


def table_of(runs: list[Path]) -> str:
    """One row per reward: MRR@10 and EM of each system, pairs, and the seconds that scoring took."""
    rows, label = [], ""
    for run in runs:
        made = read_json(run / "evaluation" / "metrics.json")
        measured, label = made["systems"], label_of(made)  # of all runs
        scores, pairs = (read_json(run / stage / "manifest.json") for stage in ("scores", "pairs"))
        rows.append(
            [
                run.name,
                *(shown(measured.get(s, {}).get(m)) for s in SYSTEMS for m in ("MRR@10", "EM")),
                str(pairs["counts"]["kept"]),
                f"{scores['seconds']:.0f}",
            ]
        )
    head = ["reward", *(f"{s} {m}" for s in SYSTEMS for m in ("MRR@10", "EM")), "pairs", "scoring s"]
    return label + grid(head, rows)


@dataclass(kw_only=True)
class CompareFlags(Validated):
    """Flags of the command.

    Args:
        rewards: values of `scoring.reward`, and `key_entropy@logged` and the like.
    """

    rewards: list[str]

    def __post_init__(self) -> None:
        for name in self.rewards:
            check_reward_name("--rewards", name, ["weighted"])


def main(argv: list[str] | None = None) -> None:
    flags, words = parse_known_flags(CompareFlags, __doc__, argv)
    settings = read_settings(__doc__, words)
    for name in ("until", "redo_from"):
        if getattr(settings.run, name):
            raise InputError(
                f"`run.{name}` is for a single run (train/dpo.py). To make a reward's run again, remove its folder in "
                f"{settings.run_dir / 'rewards'}."
            )
    set_up_logging()
    compare_rewards(settings, list(dict.fromkeys(flags.rewards)))


if __name__ == "__main__":
    run_command(main)
