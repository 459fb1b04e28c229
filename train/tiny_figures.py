"""What the tiny model can do, on the dev world (no name in it was seen in training); writes its model card.

    python -m train.tiny_figures --model configs/tiny-model

For every turn: the answer with a gold passage among three documents, with three that lack the answer, and with none;
how often KeyEntropy is higher for the first list than for the second; how likely the model is to abstain from one
passage, gold or not; how the most likely rewrite and the raw question retrieve.
"""

import argparse
import json
import random
import tempfile
from pathlib import Path
from typing import Any

from core.artifacts import read_json, versions, write_atomic
from core.cli import run_command
from core.progress import log, set_up_logging
from core.settings import RetrievalSettings, RewriterSettings

DOCUMENTS = 3


def figures(model: str, world: Path, limit: int | None = None) -> dict[str, Any]:
    """The figures of a model on the dev turns of a world folder; shares are from 0 to 1."""
    from core.language_model import load_language_model
    from core.records import GenerationInput
    from core.trec import strict_run
    from retrieval.collection import open_collection
    from retrieval.engines import build_engine
    from retrieval.metrics import per_query
    from rewriter.conversations import read_turns
    from rewriter.prompts import RewritePrompt
    from rewriter.sampling import greedy_rewrites
    from scoring.abstention import abstention_probabilities
    from scoring.answers import exact_match
    from scoring.generator import Generator
    from scoring.grogu import score_of
    from scoring.validity_cases import gold_and_without

    lm = load_language_model(model)
    generator = Generator(lm, 16, 16384)
    collection = open_collection(str(world / "corpus.jsonl"))
    turns = read_turns(world / "dev.jsonl")[:limit]
    retriever = build_engine(RetrievalSettings(), collection)
    rng, rankings = random.Random(0), retriever.search([turn.rewrite for turn in turns], 30)
    lists = [
        gold_and_without({*turn.relevant}, [hit.doc for hit in hits], DOCUMENTS, rng)
        for turn, hits in zip(turns, rankings, strict=True)
    ]

    def answered(documents: list[list[str]]) -> list:
        readings = [
            GenerationInput.of(turn.history, turn.question, collection.contents(docs))
            for turn, docs in zip(turns, documents, strict=True)
        ]
        return generator.answers(readings)

    def share_right(answers: list) -> float:
        return sum(exact_match(a.answer, t.answers) for a, t in zip(answers, turns, strict=True)) / len(turns)

    gold, without, none = (
        answered([g for g, _ in lists]),
        answered([w for _, w in lists]),
        answered([[] for _ in lists]),
    )
    wins = 0.0
    for one, other in zip(gold, without, strict=True):
        high, low = score_of(one.stats, one.answer).value, score_of(other.stats, other.answer).value
        wins += 0.5 if high == low or None in (high, low) else float(high > low)

    def abstains(docs: list[str]) -> float:
        readings = [
            GenerationInput.of(turn.history, turn.question, collection.contents([doc]))
            for turn, doc in zip(turns, docs, strict=True)
        ]
        found = abstention_probabilities(generator, readings)
        return sum(p for p in found if p is not None) / len(turns)

    first_gold = [next(doc for doc in g if doc in turn.relevant) for turn, (g, _) in zip(turns, lists, strict=True)]
    queries = {"raw": [t.question for t in turns], "reference": [t.rewrite for t in turns], "greedy": []}
    for start in range(0, len(turns), 64):
        queries["greedy"] += greedy_rewrites(lm, turns[start : start + 64], RewriterSettings(), RewritePrompt())
    qrels = {turn.id: turn.relevant for turn in turns}
    found = {}
    for name, texts in queries.items():
        run = strict_run(dict(zip((t.id for t in turns), retriever.search(texts, 10), strict=True)))
        values = per_query(qrels, run, ["MRR@10"])["MRR@10"].values()
        found[f"MRR@10 of the {name} query"] = sum(values) / len(values)
    return {
        "turns": len(turns),
        "answers right, gold passage among 3": share_right(gold),
        "answers right, 3 passages without the answer": share_right(without),
        "answers right, no passage": share_right(none),
        "KeyEntropy higher with the gold passage": wins / len(turns),
        "probability of abstaining from a gold passage": abstains(first_gold),
        "probability of abstaining from a passage without the answer": abstains([w[0] for _, w in lists]),
    } | found


def provenance(training: dict[str, Any]) -> str:
    """The commands that made the model, oldest first."""
    earlier = training.get("before")
    steps, tokens, minutes = (
        training[key] - (earlier[key] if earlier else 0) for key in ("steps", "tokens", "minutes")
    )
    options = f"--steps {steps}"
    if earlier:
        options += f" --more_of configs/tiny-model --keep {training['keep']}"
        options += f" --last_rate {training['last_rate']}"
    options += f" --workers {training['processes']}"
    line = (
        f"- `python -m train.tiny_model --out configs/tiny-model --seed {training['seed']} {options}`:\n"
        f"  {tokens / 1e6:.1f}M tokens, {minutes:.0f} minutes on {training['machine']}, commit {training['commit']}"
    )
    return f"{provenance(earlier)}\n{line}" if earlier else line


def card(training: dict[str, Any], made: dict[str, Any]) -> str:
    """The model card."""
    from train.tiny_lessons import REWRITES, UNTUNED

    rows = "".join(
        f"| {name} | {value} |\n" if isinstance(value, int) else f"| {name} | {value:.3f} |\n"
        for name, value in made.items()
    )
    lesson, last = (
        ", ".join(f"{share:.0%} {name}" for name, share in shares.items()) for shares in (REWRITES, UNTUNED)
    )
    return f"""---
license: apache-2.0
library_name: transformers
---
# Tiny chat model of the quickstart

A Qwen2 of {training["parameters"] / 1e6:.2f}M parameters (float16 safetensors) with a chat template,
trained from nothing on invented conversations (`train/tiny_world.py`, `train/tiny_lessons.py`). It rewrites
questions, answers from up to three documents, and abstains when told to. It knows no fact and no name: it reads.
It is of no use outside the tiny world.

**Its rewrites are poor on purpose**, as an untuned model's are. In training the target of a rewrite was:
{lesson} (raw: the question as it stands; wrong: about another entity; short: with half a name),
and in the last lessons {last}.
The most likely rewrite is therefore close to the raw question, and good ones are among a handful of samples.
The wording of a right rewrite was random; the model does not know which words the collection prefers.

Made by

{provenance(training)}

Figures on the dev world (`python -m train.tiny_figures --model configs/tiny-model`):

| figure | value |
|---|---|
{rows}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder made by train.tiny_model")
    parser.add_argument("--seed", type=int, default=0, help="seed of the world (default 0)")
    parser.add_argument("--limit", type=int, help="a quick look at the first N turns; no card")
    arguments = parser.parse_args()
    set_up_logging()
    from train.tiny_world import make_quickstart_data

    with tempfile.TemporaryDirectory() as folder:
        make_quickstart_data(Path(folder), arguments.seed)
        made = figures(str(arguments.model), Path(folder), arguments.limit)
    log.info("%s", json.dumps(made, indent=2))
    if arguments.limit:
        return  # figures of a few turns are no model card
    write_atomic(arguments.model / "README.md", card(read_json(arguments.model / "training.json"), made))
    log.info("card -> %s (%s)", arguments.model / "README.md", versions().get("commit", "no commit"))


if __name__ == "__main__":
    run_command(main)
