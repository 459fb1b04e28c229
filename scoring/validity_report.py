"""Score the document lists of `scoring.validity`, and write win rates and tau-b as table and plot."""

import io
import math
import time
from collections.abc import Iterable, Sequence
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
from core.scoring_settings import ScoringSettings
from core.settings import GeneratorSettings
from core.stage_runner import batched
from core.tables import format_number, markdown_table
from scoring import grogu
from scoring.answers import abstains, exact_match
from scoring.items import read_items
from scoring.registry import REWARDS, needs_entailment
from scoring.scorer import Scorer, build_scorer
from scoring.validity import ValidityFlags
from scoring.validity_cases import Case, build_cases, cases_of_items, labelled_turns

BATCH_SIZE = 8  # cases scored together
GOLD, NOISE = "gold over without", "random over retrieved"


def check_generator(flags: ValidityFlags, words: Sequence[str]) -> None:
    """Score the lists, write the files and print the table.

    Args:
        flags: flags of `scoring.validity`.
        words: command-line words that override settings.

    Raises:
        InputError: an input is invalid, or a reward needs answers that are missing.
    """
    if flags.input:
        items = read_items(flags.input, "validity")[: flags.limit]
        cases, scoring, generator = cases_of_items(items, flags.seed), ScoringSettings(), GeneratorSettings()
        model = ModelSpec(flags.model)
    else:
        settings = read_settings("", ["--config", str(flags.config), *words])
        scoring, generator = settings.scoring, settings.generator
        model = generator_spec(generator, settings.rewriter)
        cases = build_cases(*labelled_turns(settings, flags.limit), settings, flags.seed)
    try:
        flags.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"`--output`: {flags.output} cannot be a folder ({error.strerror}).") from error
    if flags.entailment:
        scoring = replace(scoring, entailment=flags.entailment)
    names = rewards_to_check(flags.rewards, cases)
    # `key_entropy` generates the answers if none of the checked rewards does.
    rewards = [*(name.partition("@")[0] for name in names), "key_entropy"]
    scorer = build_scorer(model, scoring, generator, rewards, flags.seed)
    report = {"model": model.name, "settings": asdict(scoring)} | validity_results(cases, scorer, names)
    table = table_of(report)
    write_json(flags.output / "validity.json", report)
    write_atomic(flags.output / "validity.md", table)
    write_atomic(flags.output / "validity.svg", plot_of(report))
    log.info("\n%s\nvalidity -> %s", table, flags.output)


def rewards_to_check(requested: Sequence[str], cases: Sequence[Case]) -> list[str]:
    """The rewards of `--rewards`; by default all except Delta-SePer whose labels the cases have.

    Raises:
        InputError: a reward of `--rewards` needs answers that are missing.
    """
    lists = [item for case in cases for item in case.values()]
    without_answers = sum(not all(item.answers for item in case.values()) for case in cases)
    names = list(requested) or [name for name in REWARDS if not needs_entailment([name])]
    if not requested and all(item.reply for item in lists):
        names.insert(1, "key_entropy@logged")
    unusable = [name for name in names if without_answers and REWARDS[name.partition("@")[0]].needs == "answers"]
    if unusable and requested:
        raise InputError(
            f"`--rewards {unusable[0]}` needs `answers`; {without_answers} of {len(cases)} questions have none."
        )
    if unusable:
        log.warning(
            "skipped %s: %d of %d questions have no `answers`", ", ".join(unusable), without_answers, len(cases)
        )
    return [name for name in names if name not in unusable]


def score_cases(
    cases: Sequence[Case], scorer: Scorer, names: Sequence[str]
) -> tuple[dict[str, list[float | None]], list[str], dict[str, float]]:
    """Score every list with each reward.

    A GROGU reward scores the generated answer, `key_entropy@logged` the logged one.

    Returns:
        Reward -> value of every list; the generator's answer for every list; reward -> seconds.
    """
    values: dict[str, list[float | None]] = {name: [] for name in names}
    answers: list[str] = []
    seconds = dict.fromkeys(names, 0.0)
    answering = next((name for name in names if name in grogu.REWARDS), "key_entropy")
    scorers = {
        answer: replace(scorer, scoring=replace(scorer.scoring, answer=answer)) for answer in ("generated", "logged")
    }
    with Progress("validity", len(cases), "questions") as progress:
        for batch in batched(cases, BATCH_SIZE):
            items = [item for case in batch for item in case.values()]
            for name in dict.fromkeys((*names, answering)):
                reward, _, answer = name.partition("@")
                started = time.monotonic()
                scores = [score[reward] for score in scorers[answer or "generated"].scores(items, [reward])]
                if name in names:
                    seconds[name] += time.monotonic() - started
                    values[name] += [score.value for score in scores]
                if name == answering:
                    answers += [score.answer for score in scores]
            progress.advance(len(batch))
    return values, answers, seconds


def win_rate(pairs: Iterable[tuple[float | None, float | None]]) -> dict[str, Any]:
    """Compute how often the first value of a pair is higher than the second. Ties count half.

    Returns:
        `rate`, `wins`, `losses`, `ties`, `without_value`, and `p` of the two-sided sign test without ties.
    """
    pairs = list(pairs)
    decided = [pair for pair in pairs if None not in pair]
    wins, losses = sum(a > b for a, b in decided), sum(a < b for a, b in decided)
    ties = len(decided) - wins - losses
    return {
        "rate": (wins + 0.5 * ties) / len(decided) if decided else None,
        "wins": wins,
        "losses": losses,
        "ties": ties,
        "without_value": len(pairs) - len(decided),
        "p": binomtest(wins, wins + losses).pvalue if wins + losses else 1.0,
    }


def validity_results(cases: Sequence[Case], scorer: Scorer, names: Sequence[str]) -> dict[str, Any]:
    """The content of `validity.json`, except model and settings."""
    values, answers, seconds = score_cases(cases, scorer, names)
    items = [item for case in cases for item in case.values()]
    right = [
        exact_match(text, item.answers) if item.answers else None for text, item in zip(answers, items, strict=True)
    ]
    list_names = list(cases[0])  # the same in every case

    def column(of_lists: list, name: str) -> list:
        """The entries of the lists of one name."""
        return of_lists[list_names.index(name) :: len(list_names)] if name in list_names else []

    def wins(of_lists: list, first: str, second: str) -> dict[str, Any]:
        return win_rate(zip(column(of_lists, first), column(of_lists, second), strict=True))

    rewards = {}
    for name in names:
        pairs = [pair for pair in zip(values[name], right, strict=True) if None not in pair]
        tau = kendalltau(*zip(*pairs, strict=True)).statistic if len(pairs) > 1 else math.nan
        rewards[name] = {
            GOLD: wins(values[name], "gold", "without"),
            NOISE: wins(values[name], "random", "retrieved"),
            "tau_b": None if math.isnan(tau) else float(tau),
            "seconds_per_item": seconds[name] / len(items),
        }
    shares = {}
    for name in list_names:
        correct = [value for value in column(right, name) if value is not None]
        shares[name] = sum(correct) / max(1, len(correct))
    return {
        "questions": len(cases),
        "lists": len(items),
        "answers_right": shares if any(item.answers for item in items) else None,
        "abstaining": sum(map(abstains, answers)) / len(answers),
        "rewards": rewards,
    }


def table_of(report: dict[str, Any]) -> str:
    """Format the results in Markdown."""
    header = ["reward", "gold list wins", "sign test p", "tau-b with right answers", NOISE, "ms per list"]
    rows = []
    for name, reward in report["rewards"].items():
        gold, noise, milliseconds = reward[GOLD], reward[NOISE], 1000 * reward["seconds_per_item"]
        numbers = [gold["rate"], gold["p"], reward["tau_b"], noise["rate"], milliseconds]
        rows.append([name, *map(format_number, numbers, (".3f", ".2g", ".3f", ".3f", ".1f"))])
    lines = [markdown_table(header, rows), f"{report['questions']} questions, {report['lists']} document lists."]
    if report["answers_right"]:
        shares = ", ".join(f"{name} {share:.1%}" for name, share in report["answers_right"].items())
        lines.append(f"Answers right, by list: {shares}.")
    lines.append(f"Answers that abstain: {report['abstaining']:.1%}.")
    return "\n".join(lines) + "\n"


def plot_of(report: dict[str, Any]) -> str:
    """Plot the win rates as bars, in SVG."""
    rates = {name: reward[GOLD]["rate"] for name, reward in report["rewards"].items()}
    names = [name.replace("$", r"\$") for name in rates]  # `$` would start a formula
    figure = Figure(figsize=(7, 1 + 0.3 * len(rates)), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh(names, [rate or 0.0 for rate in rates.values()])
    axes.bar_label(bars, ["no value" if rate is None else f"{rate:.2f}" for rate in rates.values()], padding=3)
    axes.axvline(0.5, color="gray", linestyle="--")
    axes.set(xlim=(0, 1.1), title="Questions in which the list with the answer scores higher")
    axes.invert_yaxis()
    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none"}):  # keep text as text
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
