"""Scoring the document lists of `scoring.validity`: win rates, tau-b, the table and the plot."""

import io
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from scipy.stats import binomtest, kendalltau

from core.artifacts import write_atomic, write_json
from core.cli import read_settings
from core.errors import InputError
from core.model_spec import ModelSpec, generator_spec
from core.progress import Progress, log
from core.records import ValidityCase
from core.scoring_settings import ScoringSettings
from core.settings import GeneratorSettings
from core.tables import format_number, markdown_table
from scoring import grogu
from scoring.answers import abstains, exact_match
from scoring.flags import ValidityFlags
from scoring.registry import NEEDS, REWARDS
from scoring.scorer import Scorer, build_scorer
from scoring.utility_io import read_items
from scoring.validity_cases import build_cases, cases_of_items, labelled_turns

BATCH_SIZE = 32  # cases whose lists are scored together
GOLD, NOISE = "gold over without", "random over retrieved"


def check_generator(flags: ValidityFlags, words: Sequence[str]) -> None:
    """Score the lists, write the files, print the table.

    Args:
        flags: of the command.
        words: flags of settings.

    Raises:
        InputError: an input is not usable, or a reward needs answers that are missing.
    """
    if flags.input:
        items = read_items(flags.input, "validity")[: flags.limit]
        cases, rule, generator = cases_of_items(items, flags.seed), ScoringSettings(), GeneratorSettings()
        model = ModelSpec(flags.model)
    else:
        settings = read_settings("", ["--config", str(flags.config), *words])
        rule, generator = settings.scoring, settings.generator
        model = generator_spec(generator, settings.rewriter)
        cases = build_cases(*labelled_turns(settings, flags.limit), settings, flags.seed)
    try:
        flags.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"`--output`: {flags.output} cannot be a folder ({error.strerror}).") from error
    if flags.entailment:
        rule = replace(rule, entailment=flags.entailment)
    names = rewards_to_check(flags.rewards, cases)
    # `key_entropy` makes the answers where no reward that is checked does.
    scorer = build_scorer(model, rule, generator, [*names, "key_entropy"], flags.seed)
    report = {"model": model.name, "settings": asdict(rule)} | figures(cases, scorer, names)
    table = table_of(report)
    write_json(flags.output / "validity.json", report)
    write_atomic(flags.output / "validity.md", table)
    write_atomic(flags.output / "validity.svg", plot_of(report))
    log.info("\n%s\nvalidity -> %s", table, flags.output)


def rewards_to_check(requested: Sequence[str], cases: Sequence[ValidityCase]) -> list[str]:
    """The rewards of `--rewards`, or all but those of Delta-SePer for which the cases have labels.

    Raises:
        InputError: a reward is asked for and needs answers that are missing.
    """
    lists = [item for case in cases for item in case.lists.values()]
    without_answers = sum(not all(item.answers for item in case.lists.values()) for case in cases)
    names = list(requested)
    if not names:
        names = [name for name in REWARDS if not name.startswith("delta_seper")]
        if all(item.reply for item in lists):
            names.insert(1, "key_entropy@logged")
    unusable = [name for name in names if NEEDS.get(name) == "answers"] if without_answers else []
    if unusable and requested:
        raise InputError(
            f"`--rewards {unusable[0]}` needs `answers`; {without_answers} of {len(cases)} questions have none."
        )
    if unusable:
        log.warning(
            "%s left out: %d of %d questions have no `answers`", ", ".join(unusable), without_answers, len(cases)
        )
    return [name for name in names if name not in unusable]


def score_cases(
    cases: Sequence[ValidityCase], scorer: Scorer, names: Sequence[str]
) -> tuple[dict[str, Any], dict[str, float]]:
    """The rewards of every list, with the generator's answers from it, and the seconds that each reward took.

    Args:
        cases: the cases.
        scorer: computes rewards.
        names: of rewards; a GROGU reward scores the generated answer, and `key_entropy@logged` the logged one.

    Returns:
        `{reward: {case: {list: value}}}` with `answers: {case: {list: text}}`, and reward -> seconds.
    """
    values: dict[str, Any] = {name: {} for name in (*names, "answers")}
    seconds = dict.fromkeys(names, 0.0)
    answering = next((name for name in names if name in grogu.REWARDS), "key_entropy")
    scorers = {answer: replace(scorer, rule=replace(scorer.rule, answer=answer)) for answer in ("generated", "logged")}
    with Progress("validity", len(cases), "questions") as progress:
        for start in range(0, len(cases), BATCH_SIZE):
            batch = cases[start : start + BATCH_SIZE]
            lists = [(case.id, list_name, item) for case in batch for list_name, item in case.lists.items()]
            items = [item for *_, item in lists]
            for name in dict.fromkeys((*names, answering)):
                reward, _, answer = name.partition("@")
                started = time.monotonic()
                scores = scorers[answer or "generated"].scores(items, [reward])
                if name in names:
                    seconds[name] += time.monotonic() - started
                for (case_id, list_name, _), score in zip(lists, scores, strict=True):
                    if name in names:
                        values[name].setdefault(case_id, {})[list_name] = score[reward].value
                    if name == answering:
                        values["answers"].setdefault(case_id, {})[list_name] = score[reward].answer
            progress.advance(len(batch))
    return values, seconds


def win_rate(values: dict[str, dict[str, float | None]], first: str, second: str) -> dict[str, Any]:
    """How often the list `first` has a higher value than `second`; ties count half.

    Returns:
        `rate`, `wins`, `losses`, `ties`, `without_value` and `p` of the two-sided sign test, ties left out.
    """
    pairs = [(lists[first], lists[second]) for lists in values.values() if first in lists and second in lists]
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


def figures(cases: Sequence[ValidityCase], scorer: Scorer, names: Sequence[str]) -> dict[str, Any]:
    """What `validity.json` contains."""
    values, seconds = score_cases(cases, scorer, names)
    lists = sum(len(case.lists) for case in cases)
    correct = {
        (case.id, list_name): exact_match(values["answers"][case.id][list_name], item.answers)
        for case in cases
        for list_name, item in case.lists.items()
        if item.answers
    }
    answers = [text for by_list in values["answers"].values() for text in by_list.values()]
    rewards = {}
    for name in names:
        pairs = [(values[name][case_id][list_name], right) for (case_id, list_name), right in correct.items()]
        pairs = [(value, right) for value, right in pairs if value is not None]
        tau = kendalltau(*zip(*pairs, strict=True)).statistic if len(pairs) > 1 else float("nan")
        rewards[name] = {
            GOLD: win_rate(values[name], "gold", "without"),
            NOISE: win_rate(values[name], "random", "retrieved"),
            "tau_b": None if tau != tau else float(tau),
            "seconds_per_item": seconds[name] / lists,
        }
    shares = {
        list_name: sum(correct.get((case.id, list_name), 0.0) for case in cases)
        / max(1, sum((case.id, list_name) in correct for case in cases))
        for list_name in cases[0].lists
    }
    return {
        "questions": len(cases),
        "lists": lists,
        "answers_right": shares if correct else None,
        "abstaining": sum(map(abstains, answers)) / len(answers) if answers else None,
        "rewards": rewards,
    }


def table_of(report: dict[str, Any]) -> str:
    """The figures in Markdown."""
    header = ["reward", "gold list wins", "sign test p", "tau-b with right answers", NOISE, "ms per list"]
    rows = [
        [
            name,
            format_number(reward[GOLD]["rate"]),
            format_number(reward[GOLD]["p"], ".2g"),
            format_number(reward["tau_b"]),
            format_number(reward[NOISE]["rate"]),
            format_number(1000 * reward["seconds_per_item"], ".1f"),
        ]
        for name, reward in report["rewards"].items()
    ]
    lines = [markdown_table(header, rows), f"{report['questions']} questions, {report['lists']} document lists."]
    if report["answers_right"]:
        shares = ", ".join(f"{name} {share:.1%}" for name, share in report["answers_right"].items())
        lines.append(f"Answers right, by list: {shares}.")
    if report["abstaining"] is not None:
        lines.append(f"Answers that abstain: {report['abstaining']:.1%}.")
    return "\n".join(lines) + "\n"


def plot_of(report: dict[str, Any]) -> str:
    """The win rates as bars, in SVG."""
    rates = {name: reward[GOLD]["rate"] for name, reward in report["rewards"].items()}
    names = [name.replace("$", r"\$") for name in rates]  # `$` would begin a formula
    figure = Figure(figsize=(7, 1 + 0.3 * len(rates)), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh(names, [rate or 0.0 for rate in rates.values()])
    axes.bar_label(bars, ["no value" if rate is None else f"{rate:.2f}" for rate in rates.values()], padding=3)
    axes.axvline(0.5, color="gray", linestyle="--")
    axes.set(xlim=(0, 1.1), title="Questions in which the list with the answer scores higher")
    axes.invert_yaxis()
    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none"}):  # text stays text
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
