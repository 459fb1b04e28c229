"""Runs that differ in the reward alone: they share candidates and rankings of the first round."""

import shutil
from dataclasses import replace
from pathlib import Path

from core.artifacts import read_json, write_atomic
from core.distributed import process, wait_for_all
from core.progress import log
from core.settings import Settings
from core.tables import format_number, markdown_table
from scoring.registry import scoring_of
from scoring.scorer import check_scoring
from train.pipeline import Run, check_inputs, prepare_data, run_pipeline, stage_names
from train.report_tables import label_of

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
                *(format_number(measured.get(s, {}).get(m)) for s in SYSTEMS for m in ("MRR@10", "EM")),
                str(pairs["counts"]["total"]),
                f"{scores['seconds']:.0f}",
            ]
        )
    head = ["reward", *(f"{s} {m}" for s in SYSTEMS for m in ("MRR@10", "EM")), "pairs", "scoring s"]
    return label + markdown_table(head, rows)
