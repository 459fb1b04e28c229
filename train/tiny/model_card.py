"""Write the tiny model's card: how it was trained, and its figures on the dev world.

python -m train.tiny.model_card --model configs/tiny-model
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from core.artifacts import read_json, write_atomic
from core.cli import run_command
from core.progress import log, set_up_logging
from train.tiny.lessons import FINAL_REWRITES, REWRITES
from train.tiny.world import make_quickstart_data

CARD = """---
license: apache-2.0
library_name: transformers
---
# Tiny chat model of the quickstart

A Qwen2 of {millions:.2f}M parameters (float16 safetensors) with a chat template, trained from nothing on invented
conversations (`train/tiny`). It rewrites questions, answers from up to three documents, and abstains when told to.
It knows no fact and no name: it reads. It is of no use outside the tiny world.

**Its rewrites are poor on purpose**, as an untuned model's are. In training the target of a rewrite was:
{rewrites} (raw: the question as it stands; wrong: about another entity; short: with half a name),
and in the final lessons {final_rewrites}.
The most likely rewrite is therefore close to the raw question, and good ones are among a handful of samples.
The wording of a right rewrite was random; the model does not know which words the collection prefers.

Made by

- `python -m train.tiny.pretrain --out configs/tiny-model --seed {seed} --steps {steps} --workers {processes}`:
  {tokens:.1f}M tokens, {minutes:.0f} minutes on {machine}, commit {commit}

Figures on the dev world (`python -m train.tiny.model_card --model configs/tiny-model`):

| figure | value |
|---|---|
{rows}
"""


def card(training: dict[str, Any], figures: dict[str, float]) -> str:
    """The model card.

    Args:
        training: what `training.json` holds.
        figures: what `train.tiny.figures` measures.
    """
    rows = (f"| {name} | {value if isinstance(value, int) else f'{value:.3f}'} |" for name, value in figures.items())
    rewrites, final_rewrites = (
        ", ".join(f"{share:.0%} {quality}" for quality, share in shares.items())
        for shares in (REWRITES, FINAL_REWRITES)
    )
    counts = {"millions": training["parameters"] / 1e6, "tokens": training["tokens"] / 1e6}
    texts = {"rewrites": rewrites, "final_rewrites": final_rewrites, "rows": "\n".join(rows)}
    return CARD.format(**training | counts | texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder written by train.tiny.pretrain")
    parser.add_argument("--seed", type=int, default=0, help="seed of the world (default 0)")
    parser.add_argument("--limit", type=int, help="a quick look at the first N turns; no card")
    arguments = parser.parse_args()
    set_up_logging()
    from train.tiny.figures import measure

    with tempfile.TemporaryDirectory() as folder:
        make_quickstart_data(Path(folder), arguments.seed)
        figures = measure(str(arguments.model), Path(folder), arguments.limit)
    log.info("%s", json.dumps(figures, indent=2))
    if not arguments.limit:
        write_atomic(arguments.model / "README.md", card(read_json(arguments.model / "training.json"), figures))
        log.info("card -> %s", arguments.model / "README.md")


if __name__ == "__main__":
    run_command(main)
