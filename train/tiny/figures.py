"""Figures of the tiny model on the dev turns of a world, whose names it has not seen in training."""

import random
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from core.language_model import load_language_model
from core.records import GenerationInput
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


def measure(model: str, world: Path, limit: int | None = None) -> dict[str, float]:
    """How a model answers, abstains and rewrites; all values but the number of turns are from 0 to 1.

    Args:
        model: model folder.
        world: folder of `corpus.jsonl` and `dev.jsonl`.
        limit: use the first turns only.
    """
    lm = load_language_model(model)
    generator = Generator(lm, 16, 16384)
    collection = open_collection(str(world / "corpus.jsonl"))
    retriever = build_engine(RetrievalSettings(), collection)
    turns = read_turns(world / "dev.jsonl")[:limit]
    hits, rng = retriever.search([turn.rewrite for turn in turns], 30), random.Random(0)
    lists = [
        gold_and_without({*turn.relevant}, [hit.doc for hit in ranking], 3, rng)
        for turn, ranking in zip(turns, hits, strict=True)
    ]
    gold, without = zip(*lists, strict=True)
    first_gold = [[next(doc for doc in docs if doc in t.relevant)] for t, docs in zip(turns, gold, strict=True)]

    def inputs(document_lists: Sequence[list[str]]) -> list[GenerationInput]:
        return [
            GenerationInput.of(turn.history, turn.question, collection.contents(docs))
            for turn, docs in zip(turns, document_lists, strict=True)
        ]

    def share_right(answers: list) -> float:
        return fmean(exact_match(a.answer, turn.answers) for a, turn in zip(answers, turns, strict=True))

    def abstention(document_lists: Sequence[list[str]]) -> float:
        return fmean(p or 0.0 for p in abstention_probabilities(generator, inputs(document_lists)))

    def mrr(queries: Sequence[str]) -> float:
        run = strict_run(dict(zip((turn.id for turn in turns), retriever.search(queries, 10), strict=True)))
        return fmean(per_query({turn.id: turn.relevant for turn in turns}, run, ["MRR@10"])["MRR@10"].values())

    from_gold, from_without, from_none = map(generator.answers, map(inputs, (gold, without, [[]] * len(turns))))
    entropies = [
        [score_of(a.stats, a.answer, "key_entropy", ScoringSettings()).value for a in pair]
        for pair in zip(from_gold, from_without, strict=True)
    ]
    wins = [0.5 if high == low or None in (high, low) else float(high > low) for high, low in entropies]
    batches = [turns[start : start + 64] for start in range(0, len(turns), 64)]
    greedy = [text for batch in batches for text in greedy_rewrites(lm, batch, RewriterSettings(), RewritePrompt())]
    return {
        "turns": len(turns),
        "answers right, gold passage among 3": share_right(from_gold),
        "answers right, 3 passages without the answer": share_right(from_without),
        "answers right, no passage": share_right(from_none),
        "KeyEntropy higher with the gold passage": fmean(wins),
        "probability of abstaining from a gold passage": abstention(first_gold),
        "probability of abstaining from a passage without the answer": abstention([docs[:1] for docs in without]),
        "MRR@10 of the raw query": mrr([turn.question for turn in turns]),
        "MRR@10 of the reference query": mrr([turn.rewrite for turn in turns]),
        "MRR@10 of the greedy query": mrr(greedy),
    }
