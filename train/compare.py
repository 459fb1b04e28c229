"""Several rewards in one go: the same candidates and rankings, then scores, pairs, training and evaluation for each.

    python -m train.compare --rewards key_entropy udcg reciprocal_rank --config configs/quickstart.yaml \\
        --run.dir runs/rewards --run.limit 300
    python -m train.compare --rewards delta_seper_soft --config configs/quickstart.yaml --run.dir runs/rewards \\
        --run.limit 300 --scoring.entailment exact

Writes a whole run for each reward in `<run>/rewards/<reward>`, and `<run>/rewards/table.md`. Rerun the command to
resume. `--rewards NAME...` takes any value of `scoring.reward`; `key_entropy@logged` and `key_entropy@generated` also
set `scoring.answer`. Each reward trains and evaluates anew, as long as a run does; `--run.limit N` takes the first N
turns. All other flags are those of train/dpo.py:
"""

import argparse
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from core.artifacts import read_json, write_atomic
from core.errors import InputError
from core.read_settings import read_settings
from core.runtime import log, process, run_command, set_up_logging, wait_for_all
from core.settings import Settings
from scoring.labels import REWARDS, check_reward_name, scoring_of
from scoring.rewards import check_scoring
from train.pipeline import Run, check_inputs, prepare_data, run_pipeline, stage_names
from train.report_tables import label_of, markdown_table, shown

SHARED = ("round-1/candidates", "round-1/rankings")
SYSTEMS = ("base", "sft", "dpo")


def compare_rewards(settings: Settings, rewards: list[str]) -> None:
    """A run for each reward, and the table."""
    shared = Run(settings, prepare_data(settings))
    check_inputs(shared, stage_names(settings.train.rounds))
    runs = [
        replace(
            settings,
            run=replace(settings.run, dir=str(shared.path / "rewards" / reward)),
            scoring=replace(settings.scoring, **scoring_of(reward)),
        )
        for reward in rewards
    ]
    for each in runs:
        check_scoring(list(shared.train_turns), each.scoring, shared.generator.name)
    run_pipeline(replace(settings, run=replace(settings.run, until=SHARED[-1])), shared.sources)
    for each in runs:
        for stage in SHARED:
            if process()[0] == 0 and not (each.run.path / stage).exists():
                copy_folder(shared.path / stage, each.run.path / stage)
        wait_for_all()
        run_pipeline(each, shared.sources)
    if process()[0] == 0:
        table = table_of([each.run.path for each in runs])
        write_atomic(shared.path / "rewards" / "table.md", table)
        log.info("\n%s", table)


def copy_folder(source: Path, target: Path) -> None:
    """Copy a folder; the copy is complete or does not exist."""
    temporary = target.with_name(f".{target.name}")
    temporary.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(source, temporary)
    temporary.rename(target)


def table_of(runs: list[Path]) -> str:
    """One row per reward: MRR@10 and EM of each system, pairs, and the seconds that scoring took."""
    rows, label = [], ""
    for run in runs:
        metrics = read_json(run / "evaluation" / "metrics.json")
        measured, label = metrics["systems"], label_of(metrics)  # the same label for all runs
        scores, pairs = (read_json(run / "round-1" / stage / "manifest.json") for stage in ("scores", "pairs"))
        rows.append(
            [
                run.name,
                *(shown(measured.get(s, {}).get(m)) for s in SYSTEMS for m in ("MRR@10", "EM")),
                str(pairs["counts"]["total"]),
                f"{scores['seconds']:.0f}",
            ]
        )
    head = ["reward", *(f"{s} {m}" for s in SYSTEMS for m in ("MRR@10", "EM")), "pairs", "scoring s"]
    return label + markdown_table(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--rewards", nargs="+")
    own, rest = parser.parse_known_args(sys.argv[1:])
    settings = read_settings(__doc__, rest, usage="--rewards NAME ... ")
    if not own.rewards:
        raise InputError(f"name the rewards: `--rewards key_entropy udcg`; known: {', '.join(REWARDS)}.")
    for name in ("until", "redo_from", "only"):
        if getattr(settings.run, name):
            raise InputError(
                f"`run.{name}` is for a single run (train/dpo.py). To make a reward's run again, remove its folder in "
                f"{settings.run.path / 'rewards'}."
            )
    for name in own.rewards:
        check_reward_name("--rewards", name, ["weighted"])
    set_up_logging()
    compare_rewards(settings, list(dict.fromkeys(own.rewards)))


if __name__ == "__main__":
    run_command(main)
