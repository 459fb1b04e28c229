"""Train a query rewriter: the whole run, from conversations to an evaluated adapter.

    accelerate launch train/dpo.py --config configs/quickstart.yaml
    accelerate launch train/dpo.py --config configs/quickstart.yaml --run.until round-1/pairs
    accelerate launch train/dpo.py --config configs/quickstart.yaml --run.redo_from round-1/scores --scoring.reward ppl
    accelerate launch train/dpo.py --config configs/own_data.yaml --run.plan      # print stages and estimated costs

Rerun the command to resume: it runs every stage that is not yet complete in the run folder. `train/pipeline.py` lists
the stages in order.
"""

import sys
from pathlib import Path

if not __package__:  # run as a script: put the repository root on the path in place of train/
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from core.cli import read_settings, run_command
from core.distributed import process
from core.progress import set_up_logging


def main(argv: list[str] | None = None) -> None:
    settings = read_settings(__doc__, argv)
    set_up_logging()
    if settings.run.plan:
        from train.plan import plan

        if process()[0] == 0:
            print(plan(settings), end="")
        return
    from train.pipeline import run_pipeline

    run_pipeline(settings)


if __name__ == "__main__":
    run_command(main, resumes=True)
