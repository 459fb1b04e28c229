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

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from core.artifacts import write_atomic, write_json
from core.cli import parse_known_flags, read_settings, run_command
from core.errors import InputError
from core.progress import log, set_up_logging
from core.schema import Positive, Seed, Validated
from core.settings import GeneratorSettings, ScoringSettings
from scoring.items import read_items
from scoring.labels import NEEDS, REWARDS, check_reward_name


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
        show_pair_order(flags, words)
    else:
        check_generator(flags, words)


def check_generator(flags: ValidityFlags, words: Sequence[str]) -> None:
    """Judge the lists, write the files, print the table.

    Args:
        flags: of the command.
        words: flags of settings.
    """
    from core.model_spec import ModelSpec, generator_spec
    from scoring.rewards import build_scorer
    from scoring.validity_cases import build_cases, cases_of_items, labelled_turns
    from scoring.validity_report import figures, plot_of, table_of

    if flags.input:
        items = read_items(flags.input, "validity")[: flags.limit]
        questions, rule, generator = cases_of_items(items, flags.seed), ScoringSettings(), GeneratorSettings()
        model = ModelSpec(flags.model)
    else:
        settings = read_settings("", ["--config", str(flags.config), *words])
        rule, generator = settings.scoring, settings.generator
        model = generator_spec(generator, settings.rewriter)
        questions = build_cases(*labelled_turns(settings, flags.limit), settings, flags.seed)
    try:
        flags.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"`--output`: {flags.output} cannot be a folder ({error.strerror}).") from error
    if flags.entailment:
        rule = replace(rule, entailment=flags.entailment)
    logged = all(item.reply for question in questions for item in question.lists.values())
    names = [name for name in REWARDS if not name.startswith("delta_seper")]
    names = list(flags.rewards or [names[0], *(["key_entropy@logged"] if logged else []), *names[1:]])
    bare = sum(not all(item.answers for item in question.lists.values()) for question in questions)
    needy = [name for name in names if NEEDS.get(name) == "answers"] if bare else []
    if needy and flags.rewards:
        raise InputError(f"`--rewards {needy[0]}` needs `answers`; {bare} of {len(questions)} questions have none.")
    if needy:
        log.warning("%s left out: %d of %d questions have no `answers`", ", ".join(needy), bare, len(questions))
        names = [name for name in names if name not in needy]
    judge = build_scorer(model, rule, generator, [*names, "key_entropy"], flags.seed)  # which makes the answers
    made = {"model": model.name, "settings": asdict(rule)} | figures(questions, judge, names)
    write_json(flags.output / "validity.json", made)
    write_atomic(flags.output / "validity.md", table_of(made))
    write_atomic(flags.output / "validity.svg", plot_of(made))
    log.info("\n%s\nvalidity -> %s", table_of(made), flags.output)


def show_pair_order(flags: ValidityFlags, words: Sequence[str]) -> None:
    """Print how the rewards of a run order the candidates of its labelled training turns.

    Args:
        flags: of the command.
        words: flags of settings.
    """
    from scoring.pair_order import order_table, pair_orders

    settings = read_settings("", ["--config", str(flags.config), *words, "--run.dir", str(flags.run)])
    table = order_table(pair_orders(settings))
    log.info("\n%s", table)
    if flags.output:
        write_atomic(flags.output / "pair_order.md", table)


if __name__ == "__main__":
    run_command(main)
