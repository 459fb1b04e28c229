"""Check a generator before training: does each reward rank documents with the answer above documents without it?

    python -m scoring.validity --config configs/quickstart.yaml --output validity
    python -m scoring.validity --input items.jsonl --model Qwen/Qwen2.5-1.5B-Instruct --output validity

With `--config`, document lists are built from the labelled training turns, or from held-out turns if no training turn
is labelled. Each turn has four lists: one gold passage among retrieved ones, a list of equal length without it, and
one gold passage with 4 random and with 4 retrieved ones. `--input` uses the passages of each item (in the format of
`scoring.utility`, with `is_relevant`). GROGU rewards score the generated answer, `key_entropy@logged` and the like the
logged reply. Writes `validity.json`, `validity.md` and `validity.svg`, and the scores of each question to `scores`.
Rerun an interrupted command to resume.

The following command compares how the rewards of a run order the candidates of a turn with their reciprocal ranks:

    python -m scoring.validity --config configs/smollm2.yaml --run runs/smollm2
"""

from dataclasses import dataclass, field
from pathlib import Path

from core.cli import parse_known_flags, run_command
from core.errors import InputError
from core.progress import set_up_logging
from core.schema import Positive, Seed, Validated
from scoring.registry import check_reward_name


@dataclass(kw_only=True)
class ValidityFlags(Validated):
    """Flags of the command.

    Args:
        config: YAML file with settings of a run (generator, retrieval, scoring, data); flags override them as in
            train/dpo.py.
        input: items with `is_relevant`, instead of turns and a collection.
        model: with `--input`: folder, Hub id or `.gguf` file of the generator.
        entailment: entailment model of Delta-SePer, or `exact`.
        rewards: rewards to check; by default all except Delta-SePer, and key_entropy@logged if every question has a
            reply.
        run: with `--config`: folder of a run; print how its rewards order its candidates.
        output: folder for validity.json, validity.md and validity.svg.
        limit: use only the first N turns of each data set, or the first N items.
        seed: seed for drawing the document lists.
    """

    config: Path | None = None
    input: Path | None = None
    model: str | None = None
    entailment: str | None = None
    rewards: list[str] = field(default_factory=list)
    run: Path | None = None
    output: Path | None = None
    limit: Positive | None = None
    seed: Seed = 0

    def __post_init__(self) -> None:
        if bool(self.config) == bool(self.input):
            raise InputError("give either `--config` (turns and a collection) or `--input` (items).")
        for name in self.rewards:
            check_reward_name("--rewards", name)
        if self.run and not self.config:
            raise InputError("`--run` needs `--config`, the settings of that run.")
        if self.run and (self.rewards or self.entailment):
            raise InputError(
                "`--run` shows the rewards in the records of the run; remove `--rewards` and `--entailment`."
            )
        if not self.output and not self.run:
            raise InputError("`--output` is not set; name a folder for validity.json, .md and .svg.")
        if self.input and not self.model:
            raise InputError("`--input` needs `--model`, the generator.")


def main(argv: list[str] | None = None) -> None:
    flags, words = parse_known_flags(ValidityFlags, __doc__, argv)
    if flags.input and words:
        raise InputError(f"`{words[0]}` cannot be used with `--input`; use `--config` to override settings.")
    set_up_logging()
    if flags.run:
        from scoring.pair_order import show_pair_order

        show_pair_order(flags, words)
    else:
        from scoring.validity_check import check_generator

        check_generator(flags, words)


if __name__ == "__main__":
    run_command(main)
