"""Train a query rewriter: the whole run, from conversations to an evaluated adapter.

    accelerate launch train/dpo.py --config configs/quickstart.yaml
    accelerate launch train/dpo.py --config configs/quickstart.yaml --run.until round-1/pairs
    accelerate launch train/dpo.py --config configs/quickstart.yaml --run.redo_from round-1/scores --scoring.reward ppl
    accelerate launch train/dpo.py --config configs/own_data.yaml --run.plan      # what it would make, at what cost

Rerun the command to resume: it makes every stage that the run folder does not hold yet (`train/pipeline.py` has the
order).
"""

import sys
from pathlib import Path

if not __package__:  # as a script, train/ is first on the path and not the root
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
