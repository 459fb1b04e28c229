"""The rewards by name, each with its function, the settings that it reads and the label that it needs.

To add a reward, write a function in a new file, add an entry to `REWARDS`, and add the name to
`core.scoring_settings.Reward`. This module does not import torch, so that `--help` and checks stay fast.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from core.errors import InputError, nearest
from core.records import Score, Turn
from core.scoring_settings import ScoringSettings
from scoring import baselines, grogu, seper, udcg
from scoring.batch import Batch


@dataclass(frozen=True)
class Reward:
    """A reward.

    Args:
        scores: function from a batch to one score per document list.
        settings: names of the `scoring` settings that it reads.
        needs: label that every turn must have: `relevant`, `answers` or None.
        needs_generator: whether it calls the generator.
        needs_entailment: whether it calls the entailment model (`scoring.entailment`).
        reads_retrieval_scores: whether it reads the scores of the documents, not only their order.
    """

    scores: Callable[[Batch], list[Score]]
    settings: tuple[str, ...] = ()
    needs: str | None = None
    needs_generator: bool = True
    needs_entailment: bool = False
    reads_retrieval_scores: bool = False


GROGU = ("answer", "reply_tokens", "alpha", "fallback", "fallback_by", "log_ppl")
UDCG = ("abstention", "relevant_weight", "irrelevant_weight", "normalize")
SEPER = ("samples", "sample_tokens", "aggregate", "entailment")
REWARDS: dict[str, Reward] = {
    **{name: Reward(partial(grogu.scores, name), GROGU) for name in grogu.REWARDS},
    "udcg": Reward(udcg.scores, UDCG, "relevant"),
    "reciprocal_rank": Reward(baselines.reciprocal_rank_scores, (), "relevant", needs_generator=False),
    "delta_seper_soft": Reward(seper.soft_scores, (*SEPER, "kernel"), "answers", needs_entailment=True),
    "delta_seper_hard": Reward(seper.hard_scores, (*SEPER, "clusters"), "answers", needs_entailment=True),
    "answer_logprob": Reward(baselines.answer_logprob_scores, (), "answers", reads_retrieval_scores=True),
}


def scoring_of(name: str) -> dict[str, str]:
    """Split a name such as `key_entropy@logged` into the `scoring` settings `reward` and, after `@`, `answer`."""
    reward, _, answer = name.partition("@")
    return {"reward": reward} | ({"answer": answer} if answer else {})


def check_reward_name(flag: str, name: str, more: Sequence[str] = ()) -> None:
    """Check that a name is a reward, or a GROGU reward with its answer such as `key_entropy@logged`.

    Raises:
        InputError: the name is unknown; names the flag, the value and the closest reward.
    """
    reward, at, answer = name.partition("@")
    names = [*REWARDS, *more]
    if reward not in names:
        raise InputError(f"`{flag} {name}`: {nearest(reward, names)}")
    if at and (reward not in grogu.REWARDS or answer not in ("generated", "logged")):
        raise InputError(
            f"`{flag} {name}`: only GROGU rewards ({', '.join(grogu.REWARDS)}) take `@generated` or `@logged`."
        )


def needs_generator(rewards: Sequence[str]) -> bool:
    """Whether one of the rewards calls the generator."""
    return any(REWARDS[name].needs_generator for name in rewards)


def needs_entailment(rewards: Sequence[str]) -> bool:
    """Whether one of the rewards calls the entailment model."""
    return any(REWARDS[name].needs_entailment for name in rewards)


def component_rewards(scoring: ScoringSettings) -> list[str]:
    """The rewards to compute: the configured one, or those that `weighted` sums.

    Raises:
        InputError: `weighted` has no weights, or a name is not a reward.
    """
    if scoring.reward != "weighted":
        return [scoring.reward]
    if not scoring.weights:
        raise InputError("`scoring.reward: weighted` needs `scoring.weights`, such as {key_entropy: 1.0, udcg: 0.5}.")
    for name in scoring.weights:
        if name not in REWARDS:
            raise InputError(f"`scoring.weights` has `{name}`; {nearest(name, list(REWARDS))}")
    return list(scoring.weights)


def relevant_settings(scoring: ScoringSettings) -> dict[str, Any]:
    """The `scoring` settings that affect the values of the configured reward; others may change on resume."""
    names = {option for name in component_rewards(scoring) for option in REWARDS[name].settings}
    names |= {"reward", "question", *(["weights"] if scoring.reward == "weighted" else [])}
    return {name: getattr(scoring, name) for name in sorted(names)}


def has_label(turn: Turn, label: str | None) -> bool:
    """Whether a turn has the label: a document with grade 1 or higher, or an answer that is not blank."""
    if label == "relevant":
        return bool(turn.gold)
    return label is None or any(answer.strip() for answer in turn.answers)


def reward_label(scoring: ScoringSettings) -> str:
    """The name of the reward in tables: `key_entropy`, or `key_entropy@logged` if logged replies are scored."""
    logged = scoring.answer == "logged" and set(component_rewards(scoring)) & {*grogu.REWARDS}
    return f"{scoring.reward}@logged" if logged else scoring.reward


def has_reward(turn: Turn, scoring: ScoringSettings) -> bool:
    """Whether a turn has the labels that the reward needs."""
    return all(has_label(turn, REWARDS[name].needs) for name in component_rewards(scoring))


def check_labels(turns: Sequence[Turn], scoring: ScoringSettings, where: str) -> None:
    """Check that every turn has the labels of the reward.

    Raises:
        InputError: turns lack a label; names the reward, the field and the number of turns.
    """
    for name in component_rewards(scoring):
        label = REWARDS[name].needs
        if missing := sum(not has_label(turn, label) for turn in turns):
            raise InputError(
                f"the reward `{name}` needs `{label}` in every turn; {missing} of {len(turns)} turns of {where} lack "
                f"it. `key_entropy` needs no label."
            )
