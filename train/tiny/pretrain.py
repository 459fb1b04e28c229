"""Pretrain the quickstart's small chat model on the tiny world.

    python -m train.tiny.pretrain --out configs/tiny-model       # about 45 minutes on 2 cores, minutes on a GPU
    python -m train.tiny.pretrain --out try --steps 20           # a short look

Rerun the command to resume from the last checkpoint; the weights are the same as without the interruption.
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

from core.runtime import run_command, set_up_logging


def worker(rank: int, workers: int, init_file: str, options: dict[str, Any]) -> None:
    """One of several training processes. Two with one thread each are faster than one with two threads."""
    import torch

    from train.tiny.trainer import Trainer

    if rank == 0:
        set_up_logging()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    torch.distributed.init_process_group("gloo", f"file://{init_file}", rank=rank, world_size=workers)
    Trainer(**options).train()
    torch.distributed.destroy_process_group()


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
    import torch

    from train.tiny.trainer import Trainer

    workers = options.pop("workers") or (1 if torch.cuda.is_available() else min(2, os.cpu_count() or 1))
    if workers == 1:
        Trainer(**options).train()
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(worker, (workers, f"{folder}/init", options), nprocs=workers)


if __name__ == "__main__":
    run_command(main)
