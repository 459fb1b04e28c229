"""Pretrain the quickstart's small chat model on the tiny world.

    python -m train.tiny.pretrain --out configs/tiny-model       # about 75 minutes on 2 cores
    python -m train.tiny.pretrain --out try --steps 20           # a short look

Rerun the command to resume from the last checkpoint; the weights are the same as without the interruption.
"""

import argparse
import os
import sys
from pathlib import Path

from core.cli import run_command
from core.distributed import process
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
    import torch  # heavy
    from torch.distributed.run import main as torchrun

    from train.tiny.trainer import Trainer

    cores = os.cpu_count() or 1
    # On a CPU, two processes with one thread each are faster than one with two threads.
    workers = options.pop("workers") or (1 if torch.cuda.is_available() else min(2, cores))
    if workers > 1 and process()[1] == 1:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // workers)))
        torchrun(["--standalone", f"--nproc_per_node={workers}", "-m", "train.tiny.pretrain", *sys.argv[1:]])
    else:
        Trainer(**options).train()


if __name__ == "__main__":
    run_command(main)
