"""Write the tiny model's card: how it was trained, and its results on the dev world.

python -m train.tiny.model_card --model configs/tiny-model
"""

import json
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from core.artifacts import read_json, write_atomic
from core.cli import parse_flags, run_command
from core.language_model import load_language_model
from core.progress import log, set_up_logging
from core.records import GeneratedAnswer, GenerationInput
from core.schema import Positive, Seed, Validated
from core.scoring_settings import ScoringSettings
from core.settings import RetrievalSettings, RewriterSettings
from core.trec import strict_run
from retrieval.collection import open_collection
from retrieval.engines import build_engine
from retrieval.metrics import per_query
from rewriter.conversations import read_turns
from rewriter.prompts import RewritePrompt
from rewriter.sampling import greedy_rewrites
from scoring.answers import exact_match
from scoring.generator import Generator
from scoring.grogu import score_of
from scoring.udcg import abstention_probabilities
from scoring.validity_cases import gold_and_without
from train.tiny.lessons import FINAL_REWRITES, REWRITES
from train.tiny.world import make_quickstart_data

CARD = """---
license: apache-2.0
library_name: transformers
---
# Tiny chat model of the quickstart

A Qwen2 with {millions:.2f}M parameters (float16 safetensors) and a chat template, trained from scratch on invented
conversations (`train/tiny`). It rewrites questions, answers from up to three documents, and abstains when instructed
to. It has learned no facts and no names, only to read, and is of no use outside the tiny world.

**Its rewrites are poor on purpose**, like those of an untuned model. The target rewrites in training were:
{rewrites} (raw: the unchanged question; wrong: about another entity; short: with half a name),
and in the final lessons {final_rewrites}.
The most likely rewrite is therefore close to the raw question, and a handful of samples contains good ones.
The wording of right rewrites was random, so the model does not know which words the collection prefers.

Training command:

- `python -m train.tiny.pretrain --out configs/tiny-model --seed {seed} --steps {steps} --workers {processes}`:
  {tokens:.1f}M tokens, {minutes:.0f} minutes on {machine}, commit {commit}

Results on the dev world (`python -m train.tiny.model_card --model configs/tiny-model`):

| measure | value |
|---|---|
{rows}
"""


def measure(model: str, world: Path, limit: int | None = None) -> dict[str, float]:
    """Measure how a model answers, abstains and rewrites.

    Args:
        model: model folder.
        world: folder of `corpus.jsonl` and `dev.jsonl`, whose names the model has not seen in training.
        limit: use only the first `limit` turns.

    Returns:
        Name -> value: the number of turns, and measures from 0 to 1.
    """
    lm = load_language_model(model)
    generator = Generator(lm, 16, 16384)
    collection = open_collection(str(world / "corpus.jsonl"))
    retriever = build_engine(RetrievalSettings(), collection)
    turns = read_turns(world / "dev.jsonl")[:limit]
    rankings, rng = retriever.search([turn.rewrite for turn in turns], 30), random.Random(0)
    lists = [
        gold_and_without({*turn.relevant}, [hit.doc for hit in ranking], 3, rng)
        for turn, ranking in zip(turns, rankings, strict=True)
    ]
    gold, without = zip(*lists, strict=True)
    only_gold = [[doc for doc in docs if doc in turn.relevant] for turn, docs in zip(turns, gold, strict=True)]

    def inputs(document_lists: Sequence[list[str]]) -> list[GenerationInput]:
        return [
            GenerationInput.of(turn.history, turn.question, collection.contents(docs))
            for turn, docs in zip(turns, document_lists, strict=True)
        ]

    def share_right(answers: list[GeneratedAnswer]) -> float:
        return fmean(exact_match(answer.answer, turn.answers) for answer, turn in zip(answers, turns, strict=True))

    def abstention(document_lists: Sequence[list[str]]) -> float:
        return fmean(p or 0.0 for p in abstention_probabilities(generator, inputs(document_lists)))

    def mrr(queries: Sequence[str]) -> float:
        run = strict_run(dict(zip((turn.id for turn in turns), retriever.search(queries, 10), strict=True)))
        return fmean(per_query({turn.id: turn.relevant for turn in turns}, run, ["MRR@10"])["MRR@10"].values())

    from_gold, from_without, from_none = map(generator.answers, map(inputs, (gold, without, [[]] * len(turns))))
    scores = [
        [score_of(answer.stats, answer.answer, "key_entropy", ScoringSettings()).value for answer in pair]
        for pair in zip(from_gold, from_without, strict=True)
    ]
    wins = [0.5 if high == low or None in (high, low) else float(high > low) for high, low in scores]
    return {
        "turns": len(turns),
        "answers right, gold passage among 3": share_right(from_gold),
        "answers right, 3 passages without the answer": share_right(from_without),
        "answers right, no passage": share_right(from_none),
        "KeyEntropy higher with the gold passage": fmean(wins),
        "probability of abstaining from a gold passage": abstention(only_gold),
        "probability of abstaining from a passage without the answer": abstention([docs[:1] for docs in without]),
        "MRR@10 of the raw query": mrr([turn.question for turn in turns]),
        "MRR@10 of the reference query": mrr([turn.rewrite for turn in turns]),
        "MRR@10 of the greedy query": mrr(greedy_rewrites(lm, turns, RewriterSettings(), RewritePrompt())),
    }


def card(training: dict[str, Any], results: dict[str, float]) -> str:
    """Format the model card from the content of `training.json` and the results of `measure`."""
    rows = (f"| {name} | {value if isinstance(value, int) else f'{value:.3f}'} |" for name, value in results.items())
    counts = {"millions": training["parameters"] / 1e6, "tokens": training["tokens"] / 1e6}
    shares = {"rewrites": REWRITES, "final_rewrites": FINAL_REWRITES}
    texts = {name: ", ".join(f"{part:.0%} {quality}" for quality, part in shares[name].items()) for name in shares}
    return CARD.format(**training | counts | texts, rows="\n".join(rows))


@dataclass(kw_only=True)
class CardFlags(Validated):
    """Flags of the command.

    Args:
        model: folder written by train.tiny.pretrain.
        seed: seed of the world.
        limit: measure only this many turns and write no card.
    """

    model: Path
    seed: Seed = 0
    limit: Positive | None = None


def main(argv: list[str] | None = None) -> None:
    flags = parse_flags(CardFlags, __doc__, argv)
    set_up_logging()
    with tempfile.TemporaryDirectory() as folder:
        make_quickstart_data(Path(folder), flags.seed)
        results = measure(str(flags.model), Path(folder), flags.limit)
    log.info("%s", json.dumps(results, indent=2))
    if not flags.limit:
        write_atomic(flags.model / "README.md", card(read_json(flags.model / "training.json"), results))
        log.info("card -> %s", flags.model / "README.md")


if __name__ == "__main__":
    run_command(main)
