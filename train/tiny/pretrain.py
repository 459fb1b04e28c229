"""Pretrain the quickstart's small chat model on the tiny world.

    python -m train.tiny.pretrain --out configs/tiny-model       # about 75 minutes on 2 cores
    python -m train.tiny.pretrain --out try --steps 20           # a short trial

Rerun the command to resume from the last checkpoint. Interruptions do not change the resulting weights.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Gt

from core.cli import parse_flags, run_command
from core.progress import set_up_logging
from core.schema import Positive, Seed, Validated


@dataclass(kw_only=True)
class PretrainFlags(Validated):
    """Flags of the command.

    Args:
        out: model folder.
        seed: seed of weights and data.
        steps: updates.
        batch: episodes per update.
        lr: learning rate of the weight matrices.
        workers: processes; by default 1 with a GPU or one core, else 2.
    """

    out: Path
    seed: Seed = 0
    steps: Positive = 9000
    batch: Positive = 16
    lr: Annotated[float, Gt(0)] = 5e-3
    workers: Positive | None = None


def main(argv: list[str] | None = None) -> None:
    flags = parse_flags(PretrainFlags, __doc__, argv)
    set_up_logging()
    from train.tiny.trainer import train  # slow to import

    train(**vars(flags))


if __name__ == "__main__":
    run_command(main, resumes=True)
