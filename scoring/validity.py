"""Check a generator before training: does each reward rank documents with the answer above those without?

    python -m scoring.validity --config configs/quickstart.yaml --output validity
    python -m scoring.validity --input items.jsonl --model Qwen/Qwen2.5-1.5B-Instruct --output validity

With `--config`, the labelled training turns make the lists, or held-out ones where no training turn is labelled: for
each turn one gold passage among retrieved ones, and a list of equal length that lacks it; then one gold passage with 4
random and with 4 retrieved ones. With `--input` (items as in `scoring.utility`, with `is_relevant`) an item's own
passages are used. Writes `validity.json`, `validity.md` and `validity.svg`.
"""

import argparse
import html
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from scipy.stats import binomtest, kendalltau

from core.artifacts import write_atomic, write_json
from core.errors import InputError
from core.inputs import splits_of
from core.read_settings import read_settings
from core.records import Turn
from core.runtime import Progress, log, run_command, set_up_logging
from core.settings import GeneratorSettings, ScoringSettings, Settings
from retrieval.collection import Collection, collections_of
from retrieval.retriever import RetrieverOfSets
from rewriter.conversations import turns_of
from scoring import grogu
from scoring.answers import exact_match
from scoring.items import as_item, read_items
from scoring.labels import NEEDS, REWARDS

BATCH = 32
LISTS = ("gold", "without")  # the two lists of each question; then, with a collection, `random` and `retrieved`


@dataclass(frozen=True)
class Question:
    """A question with the document lists that are compared."""

    id: str
    lists: dict[str, Any]  # name -> scoring.rewards.Item


def gold_and_without(
    relevant: set[str], hits: Sequence[str], k: int, rng: random.Random
) -> tuple[list[str], list[str]]:
    """A list of k documents with one gold document, and one without, the same retrieved ones in both.

    Args:
        relevant: ids of the gold documents.
        hits: retrieved ids in rank order, at least one of them not relevant.
        k: length of the lists; they are shorter where fewer of `hits` are not relevant.
        rng: decides the gold document and its place.
    """
    others = [doc for doc in hits if doc not in relevant][:k]
    k = len(others)
    place = rng.randrange(k)
    return [*others[:place], rng.choice(sorted(relevant)), *others[place : k - 1]], others


def questions_of(
    turns: Sequence[Turn], collections: Mapping[str, Collection], settings: Settings, seed: int
) -> list[Question]:
    """For each turn with a gold document: `gold` and `without`, and one gold document with 4 `random` and with 4
    `retrieved` ones. Documents are retrieved with the turn's `rewrite`, or its question where it has none."""
    from scoring.generator import GenerationInput
    from scoring.rewards import RewardInput

    rng = random.Random(seed)
    judged = [
        turn for turn in turns if any(g >= 1 and d in collections[turn.dataset] for d, g in turn.relevant.items())
    ]
    if not judged:
        raise InputError("no turn has a `relevant` document that is in the collection.")
    queries = [(turn.dataset, turn.rewrite or turn.question) for turn in judged]
    hits = RetrieverOfSets(settings.retrieval, collections).search(queries, 50)
    found = []
    for turn, ranked in zip(judged, hits, strict=True):
        collection = collections[turn.dataset]
        relevant = {doc for doc, grade in turn.relevant.items() if grade >= 1}
        retrieved = [hit.doc for hit in ranked]
        drawn = collection.ids(rng.sample(range(len(collection)), min(len(collection), 60)))
        spare = [doc for doc in drawn if doc not in relevant | set(retrieved)]
        gold = rng.choice(sorted(doc for doc in relevant if doc in collection))
        others = [doc for doc in retrieved if doc not in relevant]
        others += spare[len(others) :] if len(others) < 4 else []
        if not others:
            continue
        lists = dict(zip(LISTS, gold_and_without({gold}, others, settings.retrieval.k, rng), strict=True))
        lists |= {"random": [gold, *spare[:4]], "retrieved": [gold, *others[:4]]}
        found.append(
            Question(
                turn.id,
                {
                    name: RewardInput(
                        GenerationInput.of(turn.history, turn.question, collection.contents(docs)),
                        tuple(doc in relevant for doc in docs),
                        turn.answers,
                    )
                    for name, docs in lists.items()
                },
            )
        )
    if not found:
        raise InputError("the collection has no document beside the relevant ones of a turn.")
    return found


def questions_of_items(items: Sequence[dict[str, Any]], seed: int) -> list[Question]:
    """For each item with passages of both kinds: `gold` has a relevant one among others, `without` others alone."""
    rng, found = random.Random(seed), []
    for number, item in enumerate(items):
        gold = [passage for passage in item["passages"] if passage["is_relevant"]]
        others = [passage for passage in item["passages"] if not passage["is_relevant"]]
        if gold and others:
            place = rng.randrange(len(others))
            lists = {"gold": [*others[:place], gold[0], *others[place:-1]], "without": others}
            made = {name: as_item(item | {"passages": passages}) for name, passages in lists.items()}
            found.append(Question(f"{number} {item.get('example_id', '')}".strip(), made))
    if not found:
        raise InputError("no item has both a passage with `is_relevant` true and one with false.")
    if len(found) < len(items):
        log.warning("%d of %d items are left out: not both kinds of passages", len(items) - len(found), len(items))
    return found


def judged(questions: Sequence[Question], judge, names: Sequence[str]) -> tuple[dict[str, Any], dict[str, float]]:
    """The rewards of every list, with the answers from it, and the seconds that each reward took.

    The answers are those that a GROGU reward judges; where none is asked for, they are made beside the rewards.

    Returns:
        `{reward: {question: {list: value}}}` with `answers: {question: {list: text}}`, and reward -> seconds.
    """
    values: dict[str, Any] = {name: {} for name in (*names, "answers")}
    seconds = dict.fromkeys(names, 0.0)
    answering = next((name for name in names if name in grogu.REWARDS), "key_entropy")
    with Progress("validity", len(questions), "questions") as progress:
        for start in range(0, len(questions), BATCH):
            batch = questions[start : start + BATCH]
            flat = [(q.id, name, item) for q in batch for name, item in q.lists.items()]
            items = [item for *_, item in flat]
            for reward in dict.fromkeys((*names, answering)):
                begun = time.monotonic()
                scores = judge.scores(items, [reward])
                took = time.monotonic() - begun
                for (question, name, _), found in zip(flat, scores, strict=True):
                    if reward in names:
                        values[reward].setdefault(question, {})[name] = found[reward].value
                    if reward == answering:
                        values["answers"].setdefault(question, {})[name] = found[reward].answer
                if reward in names:
                    seconds[reward] += took
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


def figures(questions: Sequence[Question], judge, names: Sequence[str]) -> dict[str, Any]:
    """What `validity.json` holds."""
    from scoring.answers import abstains

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
            "gold over without": win_rate(values[name], *LISTS),
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
    parser.add_argument("--rewards", nargs="+", choices=REWARDS, help="default: all but those of Delta-SePer")
    parser.add_argument("--output", type=Path, required=True, help="folder for validity.json, .md and .svg")
    parser.add_argument("--limit", type=int, help="use the first N turns of each data set, or N items; default all")
    parser.add_argument("--seed", type=int, default=0, help="of the lists (default 0)")
    arguments, arguments.settings = parser.parse_known_args()
    if bool(arguments.config) == bool(arguments.input):
        raise InputError("give `--config` (turns and a collection) or `--input` (items), one of them.")
    if arguments.limit is not None and arguments.limit < 1:
        raise InputError(f"`--limit` must be at least 1, got {arguments.limit}.")
    if arguments.input and not arguments.model:
        raise InputError("`--input` needs `--model`.")
    if arguments.input and arguments.settings:
        raise InputError(f"`{arguments.settings[0]}` is not known beside `--input`; settings go with `--config`.")
    set_up_logging()
    check_generator(arguments)


def check_generator(arguments: argparse.Namespace) -> None:
    """Judge the lists, write the files, print the table."""
    from scoring.scores import generator_model, judge_of

    if arguments.input:
        items = read_items(arguments.input, "validity")[: arguments.limit]
        questions, rule, generator = questions_of_items(items, arguments.seed), ScoringSettings(), GeneratorSettings()
        model: tuple[str, str | None] = (arguments.model, None)
    else:
        settings = read_settings("", ["--config", str(arguments.config), *arguments.settings])
        rule, generator, model = settings.scoring, settings.generator, generator_model(settings)
        questions = questions_of(*labelled(settings, arguments.limit), settings, arguments.seed)
    try:
        arguments.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"`--output`: {arguments.output} cannot be a folder ({error.strerror}).") from error
    if arguments.entailment:
        rule = replace(rule, entailment=arguments.entailment)
    names = list(arguments.rewards or [name for name in REWARDS if not name.startswith("delta_seper")])
    bare = sum(not all(item.answers for item in question.lists.values()) for question in questions)
    needy = [name for name in names if NEEDS.get(name) == "answers"] if bare else []
    if needy and arguments.rewards:
        raise InputError(f"`--rewards {needy[0]}` needs `answers`; {bare} of {len(questions)} questions have none.")
    if needy:
        log.warning("%s left out: %d of %d questions have no `answers`", ", ".join(needy), bare, len(questions))
        names = [name for name in names if name not in needy]
    judge = judge_of(model, rule, generator, [*names, "key_entropy"], arguments.seed)  # which makes the answers
    made = {"model": model[0], "settings": asdict(rule)} | figures(questions, judge, names)
    write_json(arguments.output / "validity.json", made)
    write_atomic(arguments.output / "validity.md", table_of(made))
    write_atomic(arguments.output / "validity.svg", plot_of(made))
    log.info("\n%s\nvalidity -> %s", table_of(made), arguments.output)


def labelled(settings: Settings, limit: int | None) -> tuple[list[Turn], dict[str, Collection]]:
    """Turns with labels, training turns if they have them, and the collections.

    Raises:
        InputError: no turn names a relevant document.
    """
    for split in splits_of(settings):
        turns = [turn for turn in turns_of(settings, split, limit) if turn.relevant]
        if turns:
            return turns, collections_of(settings)
    raise InputError("neither `data.train` nor `data.test` has turns with `relevant` documents.")


if __name__ == "__main__":
    run_command(main)
