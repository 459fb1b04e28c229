"""Answers and rewards of an evaluation: the generator reads the documents that each system retrieved."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from core.language_model import LanguageModel
from core.records import Candidate, Hit, Score, SystemResult, Turn
from retrieval.collection import Collection
from scoring.combine import combine
from scoring.registry import component_rewards
from scoring.scorer import Scorer
from scoring.scores import reward_input_of

SHUFFLED = "shuffled"  # documents that were retrieved for another conversation
Results = dict[str, list[SystemResult]]  # system -> result of each turn


def turns_of_others(turns: Sequence[Turn]) -> dict[str, Turn]:
    """Turn id -> a turn of another conversation of the same data set, where there is one."""
    others = {}
    for dataset in {turn.dataset for turn in turns}:
        members = [turn for turn in turns if turn.dataset == dataset]
        for i, turn in enumerate(members):
            start = i + len(members) // 2
            rotated = (members[(start + j) % len(members)] for j in range(len(members)))
            other = next((each for each in rotated if each.group != turn.group), None)
            if other is not None:
                others[turn.id] = other
    return others


@dataclass
class ResultScorer:
    """Adds answers and rewards to the results of an evaluation.

    Args:
        scorer: the generator with the run's reward.
        collections: data set -> its collection.
        k: documents that the generator reads.
        shared: the rewriter where it is the generator too; it reads without its adapters.
    """

    scorer: Scorer
    collections: Mapping[str, Collection]
    k: int
    shared: LanguageModel | None = None

    def add(
        self, turns: Sequence[Turn], results: Results, shuffled: Sequence[Sequence[Hit]]
    ) -> tuple[Results, list[float | None]]:
        """Answer and score each turn from the documents of each system; equal lists are read once.

        Args:
            turns: of a batch.
            results: of each system for them.
            shuffled: for each turn the documents of another conversation; empty where there are none.

        Where nothing was retrieved, the answer is empty and there is no reward.

        Returns:
            The results with `answer`, `key_entropy` and `reward`, and for each turn the reward of `shuffled`.
        """
        lists = {
            name: [Candidate(r.rewrite or r.query, r.query, documents=r.hits[: self.k]) for r in column]
            for name, column in results.items()
        }
        lists[SHUFFLED] = [
            Candidate(turn.question, turn.question, documents=tuple(hits[: self.k]))
            for turn, hits in zip(turns, shuffled, strict=True)
        ]
        rule = self.scorer.rule
        reward_pass, answer_pass = (rule.answer, rule.question), ("generated", "conversation")
        rewards_of_pass = {reward_pass: component_rewards(rule)}
        # The pass of a GROGU reward of generated answers has the answers too.
        rewards_of_pass[answer_pass] = list(dict.fromkeys([*rewards_of_pass.get(answer_pass, []), "key_entropy"]))
        scores = {key: self._scores(turns, lists, *key, names) for key, names in rewards_of_pass.items()}
        answered, rewarded = scores[answer_pass], scores[reward_pass]
        values: dict[str, list[float | None]] = {name: [] for name in lists}
        for i in range(len(turns)):
            combined = combine([rewarded[name][i] for name in lists], rule)
            for name, score in zip(lists, combined, strict=True):
                values[name].append(score.value)
        scored = {
            name: [
                replace(
                    result,
                    answer=answered[name][i]["key_entropy"].answer,
                    key_entropy=answered[name][i]["key_entropy"].value,
                    reward=values[name][i],
                )
                for i, result in enumerate(column)
            ]
            for name, column in results.items()
        }
        return scored, values[SHUFFLED]

    def _scores(
        self,
        turns: Sequence[Turn],
        lists: Mapping[str, Sequence[Candidate]],
        answer: str,
        question: str,
        rewards: Sequence[str],
    ) -> dict[str, list[dict[str, Score]]]:
        """Some rewards of the lists of each system: system -> for each turn, reward -> score."""
        items = [
            reward_input_of(turn, candidate, question, self.collections[turn.dataset])
            for column in lists.values()
            for turn, candidate in zip(turns, column, strict=True)
        ]
        scorer = replace(self.scorer, rule=replace(self.scorer.rule, answer=answer))
        with self.shared.using(None) if self.shared else nullcontext():
            scores = iter(scorer.scores(items, rewards))
        return {name: [next(scores) for _ in turns] for name in lists}
