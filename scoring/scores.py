"""STAGE scores: the generator scores the documents of every candidate."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from core.model_spec import ModelSpec
from core.progress import log
from core.records import Candidate, GenerationInput, RewardInput, Turn, TurnRecord
from core.scoring_settings import ScoringSettings
from core.settings import GeneratorSettings, RunSettings
from core.stage_runner import run_stage
from core.stages import Stage
from retrieval.collection import Collection
from rewriter.conversations import TurnSet
from scoring.combine import combine
from scoring.registry import REWARDS, component_rewards, needs_entailment, relevant_settings
from scoring.scorer import Scorer, build_scorer

BATCH_SIZE = 8  # turns whose document lists are scored and saved together


def make_scores(
    run: RunSettings,
    name: str,
    rankings: Stage,
    turns: TurnSet,
    collections: Mapping[str, Collection],
    scoring: ScoringSettings,
    generator: GeneratorSettings,
    model: ModelSpec,
) -> Stage:
    """Run the stage. The turns must have the labels of the reward (`check_scoring`).

    Of `generator`, only the limits count; `model` is the generator.

    Raises:
        InputError: too many records failed.
    """
    rewards = component_rewards(scoring)
    settings = relevant_settings(scoring) | generator.limits | {"dtype": generator.dtype}
    inputs = {"rankings": rankings.identity, "turns": turns.fingerprint, "model": model.fingerprint}
    if needs_entailment(rewards):
        inputs["entailment"] = ModelSpec(scoring.entailment).fingerprint
    stage = Stage(run.path, name, settings, inputs, TurnRecord)

    def load_worker():
        scorer = build_scorer(model, scoring, generator, rewards, run.seed)

        def score(batch: list[TurnRecord]) -> list[TurnRecord]:
            records = score_records(scorer, rewards, batch, turns.by_id, collections)
            stage.batch_limit = scorer.generator and scorer.generator.lm.batch_limit
            return records

        return score

    return run_stage(stage, rankings, BATCH_SIZE, load_worker, summarize, run.max_failed_fraction)


def score_records(
    scorer: Scorer,
    rewards: list[str],
    records: list[TurnRecord],
    turns: Mapping[str, Turn],
    collections: Mapping[str, Collection],
) -> list[TurnRecord]:
    """Add `lists` to records, and `list_id` with `score` or `error` to each candidate.

    Candidates with the same documents and the same question to the generator share a score.
    """
    scoring = scorer.scoring
    keys = [[list_key(candidate, scoring.question, rewards) for candidate in record.candidates] for record in records]
    inputs = [
        {
            key: reward_input_of(turns[record.id], candidate, scoring.question, collections[record.dataset])
            for key, candidate in zip(keys_of_turn, record.candidates, strict=True)
        }
        for keys_of_turn, record in zip(keys, records, strict=True)
    ]
    scored = iter(scorer.scores([item for lists in inputs for item in lists.values()], rewards))
    results = []
    for record, keys_of_turn, lists in zip(records, keys, inputs, strict=True):
        scores = dict(zip(lists, combine([next(scored) for _ in lists], scoring), strict=True))
        ids = {key: str(number) for number, key in enumerate(lists, 1)}
        candidates = tuple(
            replace(candidate, list_id=ids[key], score=scores[key].value, error=scores[key].error or "")
            for key, candidate in zip(keys_of_turn, record.candidates, strict=True)
        )
        results.append(replace(record, candidates=candidates, lists={ids[key]: scores[key] for key in lists}))
    return results


def list_key(candidate: Candidate, question: str, rewards: list[str]) -> tuple:
    """The key under which candidates of a turn share a score: documents, the rewrite if the generator is asked it, and
    the retriever's scores if the reward reads them."""
    hits = candidate.documents
    read_scores = any(REWARDS[name].reads_retrieval_scores for name in rewards)
    documents = hits if read_scores else tuple(hit.doc for hit in hits)
    return documents, candidate.text if question == "rewrite" else ""


def reward_input_of(turn: Turn, candidate: Candidate, question: str, collection: Collection) -> RewardInput:
    """The documents of a candidate as input to the rewards."""
    history, text = ((), candidate.text) if question == "rewrite" else (turn.history, turn.question)
    documents = [hit.doc for hit in candidate.documents]
    return RewardInput(
        GenerationInput.of(history, text, collection.contents(documents)),
        tuple(doc in turn.gold for doc in documents) if turn.relevant else None,
        turn.answers,
        tuple(hit.score for hit in candidate.documents),
        turn.logged_reply,
    )


def summarize(records: Iterable[TurnRecord]) -> dict[str, Any]:
    """Count lists, errors and answers. A turn has failed if none of its document lists has a score."""
    counts: Counter = Counter()
    reasons: Counter = Counter()
    for record in records:
        lists = record.lists.values()
        errors = [score.error for score in lists if score.error]
        counts.update(total=1, candidates=len(record.candidates), lists=len(lists), unscored=len(errors))
        counts.update(failed=bool(lists) and len(errors) == len(lists))
        counts.update(abstaining=sum(score.abstains for score in lists))
        counts.update(documents_cut=sum(score.cut for score in lists))
        counts.update(logged=sum(score.answer_source == "logged" for score in lists))
        counts.update(fallback=sum(score.rule == "fallback" for score in lists))
        reasons.update(errors)
    if counts["abstaining"] > 0.1 * counts["lists"]:
        log.warning(
            "scores: %d of %d answers read like an abstention; a generator that abstains with confidence gives "
            "useless documents a high score.", counts["abstaining"], counts["lists"],
        )  # fmt: skip
    return dict(counts) | {"reasons": dict(reasons)}
