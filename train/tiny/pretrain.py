"""Pretrain the quickstart's small chat model on the tiny world.

    python -m train.tiny.pretrain --out configs/tiny-model       # about 75 minutes on 2 cores
    python -m train.tiny.pretrain --out try --steps 20           # a short trial

Rerun the command to resume from the last checkpoint. Interruptions do not change the resulting weights.
"""

import argparse
from pathlib import Path

from core.cli import run_command
from core.progress import set_up_logging


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="model folder")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and data (default 0)")
    parser.add_argument("--steps", type=int, default=9000, help="updates (default 9000)")
    parser.add_argument("--batch", type=int, default=16, help="episodes per update (default 16)")
    parser.add_argument("--lr", type=float, default=5e-3, help="learning rate of the weight matrices (default 5e-3)")
    parser.add_argument("--workers", type=int, help="processes (default: 1 with a GPU or one core, else 2)")
    options = vars(parser.parse_args())
    set_up_logging()
    from train.tiny.trainer import train  # slow to import

    train(**options)


if __name__ == "__main__":
    run_command(main, resumes=True)
