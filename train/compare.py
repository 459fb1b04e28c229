"""Compare rewards: run scores, pairs, training and evaluation for each reward, with the same candidates and rankings.

    python -m train.compare --rewards key_entropy udcg reciprocal_rank --config configs/quickstart.yaml \\
        --run.dir runs/rewards --run.limit 300
    python -m train.compare --rewards delta_seper_soft --config configs/quickstart.yaml --run.dir runs/rewards \\
        --run.limit 300 --scoring.entailment exact

Writes a whole run for each reward to `<run>/rewards/<reward>`, and the table to `<run>/rewards/table.md`. Rerun the
command to resume. `--rewards NAME...` takes any value of `scoring.reward`; `key_entropy@logged` and
`key_entropy@generated` also set `scoring.answer`. Training and evaluating a reward takes as long as a run;
`--run.limit N` uses only the first N turns. All other flags are those of train/dpo.py; its `--help` lists them.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from core.artifacts import read_json, write_atomic
from core.cli import parse_known_flags, read_settings, run_command
from core.distributed import process, wait_for_all
from core.errors import InputError
from core.progress import log, set_up_logging
from core.schema import Validated
from core.settings import Settings
from core.tables import format_number, markdown_table
from scoring.registry import check_reward_name, scoring_of
from train.report_tables import label_of

SHARED = ("round-1/candidates", "round-1/rankings")
COLUMNS = [(system, measure) for system in ("base", "sft", "dpo") for measure in ("MRR@10", "EM")]


@dataclass(kw_only=True)
class CompareFlags(Validated):
    """Flags of the command.

    Args:
        rewards: values of `scoring.reward`; GROGU rewards also as `key_entropy@logged` or `key_entropy@generated`.
    """

    rewards: list[str]

    def __post_init__(self) -> None:
        for name in self.rewards:
            check_reward_name("--rewards", name, ["weighted"])


def main(argv: list[str] | None = None) -> None:
    flags, words = parse_known_flags(CompareFlags, __doc__, argv)
    settings = read_settings(__doc__, words)
    for name in ("until", "redo_from", "only", "plan"):
        if getattr(settings.run, name):
            raise InputError(
                f"`run.{name}` works only for a single run (train/dpo.py). To repeat the run of a reward, remove its "
                f"folder in {settings.run.path / 'rewards'}."
            )
    set_up_logging()
    compare_rewards(settings, list(dict.fromkeys(flags.rewards)))


def compare_rewards(settings: Settings, rewards: list[str]) -> None:
    """Run the pipeline for each reward with shared candidates and rankings, and write the table."""
    from train import pipeline

    shared = pipeline.Run(settings, pipeline.prepare_data(settings))
    pipeline.check_inputs(shared, pipeline.stage_names(settings.train.rounds))
    runs = [
        replace(
            settings,
            run=replace(settings.run, dir=str(shared.path / "rewards" / reward)),
            scoring=replace(settings.scoring, **scoring_of(reward)),
        )
        for reward in rewards
    ]
    for run_settings in runs:
        key = settings.generator.model_key
        pipeline.check_scoring(shared.train_turns.turns, run_settings.scoring, shared.generator.name, key)
    pipeline.run_pipeline(replace(settings, run=replace(settings.run, until=SHARED[-1])), shared.sources)
    for run_settings in runs:
        for name in ("data", *SHARED):  # `data` has the tiny world or the pools
            source, target = shared.path / name, run_settings.run.path / name
            if process()[0] == 0 and source.exists() and not target.exists():
                pipeline.copy_folder(source, target)
        wait_for_all()
        pipeline.run_pipeline(run_settings, shared.sources)
    if process()[0] == 0:
        table = table_of([run_settings.run.path for run_settings in runs])
        write_atomic(shared.path / "rewards" / "table.md", table)
        log.info("\n%s", table)


def table_of(runs: list[Path]) -> str:
    """Format one row per reward: MRR@10 and EM of each system, number of pairs, and seconds of scoring."""
    rows, label = [], ""
    for run in runs:
        metrics = read_json(run / "evaluation" / "metrics.json")
        label = label_of(metrics)  # the same for all runs
        scores, pairs = (read_json(run / "round-1" / stage / "manifest.json") for stage in ("scores", "pairs"))
        values = [format_number(metrics["systems"].get(system, {}).get(measure)) for system, measure in COLUMNS]
        rows.append([run.name, *values, str(pairs["counts"]["total"]), f"{scores['seconds']:.0f}"])
    return label + markdown_table(["reward", *map(" ".join, COLUMNS), "pairs", "scoring s"], rows)


if __name__ == "__main__":
    run_command(main, resumes=True)
