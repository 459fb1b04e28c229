"""Answers and rewards of an evaluation, from the documents that each system retrieved."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

from core.language_model import LanguageModel
from core.records import Candidate, Score, SystemResult, Turn
from retrieval.collection import Collection
from scoring.combine import combine
from scoring.registry import component_rewards
from scoring.scorer import Scorer
from scoring.scores import reward_input_of

Results = dict[str, list[SystemResult]]  # system -> result of each turn


def questions_of_others(turns: Sequence[Turn]) -> dict[str, str]:
    """Turn id -> a question of another conversation of the same data set; empty if there is none."""
    questions = {}
    for dataset in {turn.dataset for turn in turns}:
        members = [turn for turn in turns if turn.dataset == dataset]
        for i, turn in enumerate(members):
            start = i + len(members) // 2
            rotated = (members[(start + j) % len(members)] for j in range(len(members)))
            questions[turn.id] = next((other.question for other in rotated if other.group != turn.group), "")
    return questions


def score_results(
    scorer: Scorer,
    collections: Mapping[str, Collection],
    k: int,
    shared: LanguageModel | None,
    turns: Sequence[Turn],
    results: Results,
) -> Results:
    """Add `answer`, `key_entropy` and `reward` to the results of a batch of turns.

    The generator reads the first `k` documents of a result; equal document lists are computed once. A result without
    documents gets an empty answer and no reward. `shared` is the rewriter's model if it is also the generator; its
    adapters are off while it answers.
    """
    rule = scorer.scoring

    def scores_of(answer: str, question: str, rewards: Sequence[str]) -> dict[str, list[dict[str, Score]]]:
        """System -> for each turn, reward -> score."""
        items = [
            reward_input_of(
                turn,
                Candidate(result.rewrite or result.query, result.query, documents=result.hits[:k]),
                question,
                collections[turn.dataset],
            )
            for column in results.values()
            for turn, result in zip(turns, column, strict=True)
        ]
        with shared.using(None) if shared else nullcontext():
            scores = iter(replace(scorer, scoring=replace(rule, answer=answer)).scores(items, rewards))
        return {name: [next(scores) for _ in turns] for name in results}

    reward_pass, answer_pass = (rule.answer, rule.question), ("generated", "conversation")
    rewards = {reward_pass: component_rewards(rule)}
    # A GROGU reward of generated answers computes the answers in the same pass.
    rewards[answer_pass] = list(dict.fromkeys([*rewards.get(answer_pass, []), "key_entropy"]))
    scores = {key: scores_of(*key, names) for key, names in rewards.items()}
    combined = [combine([scores[reward_pass][name][i] for name in results], rule) for i in range(len(turns))]
    return {
        name: [
            replace(
                result,
                answer=scores[answer_pass][name][i]["key_entropy"].answer,
                key_entropy=scores[answer_pass][name][i]["key_entropy"].value,
                reward=combined[i][number].value,
            )
            for i, result in enumerate(column)
        ]
        for number, (name, column) in enumerate(results.items())
    }
