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

import argparse
import html
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scipy.stats import binomtest, kendalltau

from core.artifacts import write_atomic, write_json
from core.errors import InputError
from core.read_settings import read_settings
from core.runtime import Progress, log, run_command, set_up_logging
from core.settings import GeneratorSettings, ScoringSettings
from scoring import grogu
from scoring.answers import abstains, exact_match
from scoring.items import read_items
from scoring.labels import NEEDS, REWARDS, check_reward_name

if TYPE_CHECKING:
    from core.records import ValidityCase

BATCH = 32


def judged(
    questions: Sequence["ValidityCase"], judge, names: Sequence[str]
) -> tuple[dict[str, Any], dict[str, float]]:
    """The rewards of every list, with the generator's answers from it, and the seconds that each reward took.

    Args:
        questions: the cases.
        judge: computes rewards.
        names: of rewards; a GROGU reward scores the generated answer, and `key_entropy@logged` the logged one.

    Returns:
        `{reward: {question: {list: value}}}` with `answers: {question: {list: text}}`, and reward -> seconds.
    """
    values: dict[str, Any] = {name: {} for name in (*names, "answers")}
    seconds = dict.fromkeys(names, 0.0)
    answering = next((name for name in names if name in grogu.REWARDS), "key_entropy")
    judges = {answer: replace(judge, rule=replace(judge.rule, answer=answer)) for answer in ("generated", "logged")}
    with Progress("validity", len(questions), "questions") as progress:
        for start in range(0, len(questions), BATCH):
            batch = questions[start : start + BATCH]
            flat = [(q.id, name, item) for q in batch for name, item in q.lists.items()]
            items = [item for *_, item in flat]
            for spec in dict.fromkeys((*names, answering)):
                reward, _, answer = spec.partition("@")
                start_time = time.monotonic()
                scores = judges[answer or "generated"].scores(items, [reward])
                if spec in names:
                    seconds[spec] += time.monotonic() - start_time
                for (question, name, _), score in zip(flat, scores, strict=True):
                    if spec in names:
                        values[spec].setdefault(question, {})[name] = score[reward].value
                    if spec == answering:
                        values["answers"].setdefault(question, {})[name] = score[reward].answer
            progress.advance(len(batch))
    return values, seconds


def win_rate(values: dict[str, dict[str, float | None]], one: str, other: str) -> dict[str, Any]:
    """How often the list `one` is worth more than `other`; ties count half.

    Returns:
        `rate`, `wins`, `losses`, `ties`, `without_value` and `p` of the two-sided sign test, ties left out.
    """
    pairs = [(lists[one], lists[other]) for lists in values.values() if one in lists and other in lists]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    wins, losses = sum(a > b for a, b in known), sum(a < b for a, b in known)
    ties = len(known) - wins - losses
    return {
        "rate": (wins + 0.5 * ties) / len(known) if known else None,
        "wins": wins,
        "losses": losses,
        "ties": ties,
        "without_value": len(pairs) - len(known),
        "p": binomtest(wins, wins + losses).pvalue if wins + losses else 1.0,
    }


def figures(questions: Sequence["ValidityCase"], judge, names: Sequence[str]) -> dict[str, Any]:
    """What `validity.json` holds."""
    values, seconds = judged(questions, judge, names)
    items = sum(len(question.lists) for question in questions)
    right = {
        (question.id, name): exact_match(values["answers"][question.id][name], item.answers)
        for question in questions
        for name, item in question.lists.items()
        if item.answers
    }
    answers = [text for lists in values["answers"].values() for text in lists.values()]
    rewards = {}
    for name in names:
        both = [(values[name][q][which], correct) for (q, which), correct in right.items()]
        both = [(value, correct) for value, correct in both if value is not None]
        tau = kendalltau(*zip(*both, strict=True)).statistic if len(both) > 1 else float("nan")
        rewards[name] = {
            "gold over without": win_rate(values[name], "gold", "without"),
            "random over retrieved": win_rate(values[name], "random", "retrieved"),
            "tau_b": None if tau != tau else float(tau),
            "seconds_per_item": seconds[name] / items,
        }
    shares = {
        name: sum(right[q.id, name] for q in questions if (q.id, name) in right)
        / max(1, sum((q.id, name) in right for q in questions))
        for name in questions[0].lists
    }
    return {
        "questions": len(questions),
        "lists": items,
        "answers_right": shares if right else None,
        "abstaining": sum(map(abstains, answers)) / len(answers) if answers else None,
        "rewards": rewards,
    }


def shown(value: float | None, form: str = ".3f") -> str:
    return "" if value is None else format(value, form)


def table_of(made: dict[str, Any]) -> str:
    """The figures in Markdown."""
    lines = [
        "| reward | gold list wins | sign test p | tau-b with right answers | random over retrieved | ms an item |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in made["rewards"].items():
        gold, noise = one["gold over without"], one["random over retrieved"]
        cells = [name, shown(gold["rate"]), shown(gold["p"], ".2g"), shown(one["tau_b"]), shown(noise["rate"])]
        lines.append("| " + " | ".join([*cells, shown(1000 * one["seconds_per_item"], ".1f")]) + " |")
    lines += ["", f"{made['questions']} questions, {made['lists']} document lists."]
    if made["answers_right"]:
        right = ", ".join(f"{name} {share:.1%}" for name, share in made["answers_right"].items())
        lines.append(f"Answers right, by list: {right}.")
    if made["abstaining"] is not None:
        lines.append(f"Answers that abstain: {made['abstaining']:.1%}.")
    return "\n".join(lines) + "\n"


def plot_of(made: dict[str, Any]) -> str:
    """Bars of the win rates, as SVG."""
    rows, width = list(made["rewards"].items()), 320
    parts = []
    for number, (name, one) in enumerate(rows):
        rate, y = one["gold over without"]["rate"], 30 + 24 * number
        long = width * (rate or 0.0)
        parts.append(
            f'<text x="150" y="{y + 13}" text-anchor="end">{html.escape(name)}</text>'
            f'<rect x="160" y="{y}" width="{long:.1f}" height="18" fill="#4477aa"/>'
            f'<text x="{165 + long:.1f}" y="{y + 13}">{"no value" if rate is None else f"{rate:.2f}"}</text>'
        )
    bottom, half = 36 + 24 * len(rows), 160 + width / 2
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="540" height="{bottom + 10}" font-family="sans-serif" '
        f'font-size="12"><text x="160" y="18">questions in which the list with the answer scores higher</text>'
        f"{''.join(parts)}"
        f'<line x1="{half}" x2="{half}" y1="24" y2="{bottom}" stroke="#555" stroke-dasharray="3"/></svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        usage="%(prog)s (--config FILE [--section.key VALUE ...] | --input FILE --model NAME) --output FOLDER ...",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config",
        type=Path,
        help="settings of a run: generator, retrieval, scoring, data; any is overridden as in train/dpo.py",
    )
    parser.add_argument("--input", type=Path, help="items with `is_relevant`, instead of turns and a collection")
    parser.add_argument("--model", help="the generator, with --input: folder, Hub id or .gguf file")
    parser.add_argument("--entailment", help="entailment model of Delta-SePer, or `exact`")
    parser.add_argument(
        "--rewards",
        nargs="+",
        help="default: all but those of Delta-SePer, and key_entropy@logged where every question has a reply",
    )
    parser.add_argument("--run", type=Path, help="with --config: how the rewards of this run order its candidates")
    parser.add_argument("--output", type=Path, help="folder for validity.json, .md and .svg")
    parser.add_argument("--limit", type=int, help="use the first N turns of each data set, or N items; default all")
    parser.add_argument("--seed", type=int, default=0, help="of the lists (default 0)")
    arguments, arguments.settings = parser.parse_known_args()
    if bool(arguments.config) == bool(arguments.input):
        raise InputError("give `--config` (turns and a collection) or `--input` (items), one of them.")
    if arguments.limit is not None and arguments.limit < 1:
        raise InputError(f"`--limit` must be at least 1, got {arguments.limit}.")
    for name in arguments.rewards or []:
        check_reward_name("--rewards", name)
    if arguments.run and not arguments.config:
        raise InputError("`--run` needs `--config`: the settings of that run.")
    if not arguments.output and not arguments.run:
        raise InputError("`--output` is not set; name a folder for validity.json, .md and .svg.")
    if arguments.input and not arguments.model:
        raise InputError("`--input` needs `--model`.")
    if arguments.input and arguments.settings:
        raise InputError(f"`{arguments.settings[0]}` is not known beside `--input`; settings go with `--config`.")
    set_up_logging()
    if arguments.run:
        show_pair_order(arguments)
    else:
        check_generator(arguments)


def check_generator(arguments: argparse.Namespace) -> None:
    """Judge the lists, write the files, print the table."""
    from core.language_model import ModelSpec, generator_spec
    from scoring.rewards import build_scorer
    from scoring.validity_cases import build_cases, cases_of_items, labelled_turns

    if arguments.input:
        items = read_items(arguments.input, "validity")[: arguments.limit]
        questions, rule, generator = cases_of_items(items, arguments.seed), ScoringSettings(), GeneratorSettings()
        model = ModelSpec(arguments.model)
    else:
        settings = read_settings("", ["--config", str(arguments.config), *arguments.settings])
        rule, generator = settings.scoring, settings.generator
        model = generator_spec(generator, settings.rewriter)
        questions = build_cases(*labelled_turns(settings, arguments.limit), settings, arguments.seed)
    try:
        arguments.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"`--output`: {arguments.output} cannot be a folder ({error.strerror}).") from error
    if arguments.entailment:
        rule = replace(rule, entailment=arguments.entailment)
    logged = all(item.reply for question in questions for item in question.lists.values())
    names = [name for name in REWARDS if not name.startswith("delta_seper")]
    names = list(arguments.rewards or [names[0], *(["key_entropy@logged"] if logged else []), *names[1:]])
    bare = sum(not all(item.answers for item in question.lists.values()) for question in questions)
    needy = [name for name in names if NEEDS.get(name) == "answers"] if bare else []
    if needy and arguments.rewards:
        raise InputError(f"`--rewards {needy[0]}` needs `answers`; {bare} of {len(questions)} questions have none.")
    if needy:
        log.warning("%s left out: %d of %d questions have no `answers`", ", ".join(needy), bare, len(questions))
        names = [name for name in names if name not in needy]
    judge = build_scorer(model, rule, generator, [*names, "key_entropy"], arguments.seed)  # which makes the answers
    made = {"model": model.name, "settings": asdict(rule)} | figures(questions, judge, names)
    write_json(arguments.output / "validity.json", made)
    write_atomic(arguments.output / "validity.md", table_of(made))
    write_atomic(arguments.output / "validity.svg", plot_of(made))
    log.info("\n%s\nvalidity -> %s", table_of(made), arguments.output)


def show_pair_order(arguments: argparse.Namespace) -> None:
    """Print how the rewards of a run order the candidates of its labelled training turns."""
    from scoring.pair_order import order_table, pair_orders

    settings = read_settings(
        "", ["--config", str(arguments.config), *arguments.settings, "--run.dir", str(arguments.run)]
    )
    table = order_table(pair_orders(settings))
    log.info("\n%s", table)
    if arguments.output:
        write_atomic(arguments.output / "pair_order.md", table)


if __name__ == "__main__":
    run_command(main)
