"""Check a generator before training: does each reward rank documents with the answer above those without?

    python -m scoring.validity --config configs/quickstart.yaml --output validity
    python -m scoring.validity --input items.jsonl --model Qwen/Qwen2.5-1.5B-Instruct --output validity

With `--config`, the labelled training turns make the lists, or held-out ones where no training turn is labelled: for
each turn one gold passage among retrieved ones, and a list of equal length that lacks it; then one gold passage with 4
random and with 4 retrieved ones. With `--input` (items as in `scoring.utility`, with `is_relevant`) an item's own
passages are used. Writes `validity.json`, `validity.md` and `validity.svg`. GROGU rewards score the generated answer;
`key_entropy@logged` and the like score the logged reply.

    python -m scoring.validity --config configs/smollm2.yaml --run runs/smollm2

prints how the rewards of a run order the candidates of a turn, beside the order of their reciprocal ranks.
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
        config: settings of a run: generator, retrieval, scoring, data; any is overridden as in train/dpo.py.
        input: items with `is_relevant`, instead of turns and a collection.
        model: the generator, with `--input`: folder, Hub id or `.gguf` file.
        entailment: entailment model of Delta-SePer, or `exact`.
        rewards: rewards to check; without it all but those of Delta-SePer, and key_entropy@logged where every question
            has a reply.
        run: with `--config`: how the rewards of this run order its candidates.
        output: folder for validity.json, .md and .svg.
        limit: use the first N turns of each data set, or N items.
        seed: seed of the lists.
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
            raise InputError("give `--config` (turns and a collection) or `--input` (items), one of them.")
        for name in self.rewards:
            check_reward_name("--rewards", name)
        if self.run and not self.config:
            raise InputError("`--run` needs `--config`: the settings of that run.")
        if not self.output and not self.run:
            raise InputError("`--output` is not set; name a folder for validity.json, .md and .svg.")
        if self.input and not self.model:
            raise InputError("`--input` needs `--model`.")


def main(argv: list[str] | None = None) -> None:
    flags, words = parse_known_flags(ValidityFlags, __doc__, argv)
    if flags.input and words:
        raise InputError(f"`{words[0]}` is not known beside `--input`; settings go with `--config`.")
    set_up_logging()
    if flags.run:
        from scoring.pair_order import show_pair_order

        show_pair_order(flags, words)
    else:
        from scoring.validity_report import check_generator

        check_generator(flags, words)


if __name__ == "__main__":
    run_command(main)
