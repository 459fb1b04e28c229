"""Figures of `scoring.validity`: win rates, tau-b, the table and the plot."""

import html
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from scipy.stats import binomtest, kendalltau

from core.progress import Progress
from scoring import grogu
from scoring.answers import abstains, exact_match
from scoring.validity_cases import ValidityCase

BATCH = 32


def judged(questions: Sequence[ValidityCase], judge, names: Sequence[str]) -> tuple[dict[str, Any], dict[str, float]]:
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


def figures(questions: Sequence[ValidityCase], judge, names: Sequence[str]) -> dict[str, Any]:
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
