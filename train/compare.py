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

from dataclasses import dataclass

from core.cli import parse_known_flags, read_settings, run_command
from core.errors import InputError
from core.progress import set_up_logging
from core.schema import Validated
from scoring.registry import check_reward_name


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
    for name in ("until", "redo_from", "only"):
        if getattr(settings.run, name):
            raise InputError(
                f"`run.{name}` is for a single run (train/dpo.py). To make a reward's run again, remove its folder in "
                f"{settings.run.path / 'rewards'}."
            )
    set_up_logging()
    from train.reward_comparison import compare_rewards

    compare_rewards(settings, list(dict.fromkeys(flags.rewards)))


if __name__ == "__main__":
    run_command(main)
