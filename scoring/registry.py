"""The rewards by name, the labels that each needs, and the settings that it reads.

Imports no torch: `--help` and checks stay quick.
"""

import math
from collections.abc import Sequence
from typing import Any, get_args

from core.errors import InputError, nearest
from core.records import Turn
from core.scoring_settings import Reward, ScoringSettings
from scoring import grogu

NEEDS = {
    "udcg": "relevant",
    "reciprocal_rank": "relevant",
    "delta_seper_soft": "answers",
    "delta_seper_hard": "answers",
    "answer_logprob": "answers",
}
REWARDS: tuple[str, ...] = get_args(Reward)
SEPER = ("samples", "sample_tokens", "aggregate", "entailment")
READS = dict.fromkeys(grogu.REWARDS, ("answer", "reply_tokens", "alpha", "fallback", "fallback_by", "log_ppl")) | {
    "udcg": ("abstention", "relevant_weight", "irrelevant_weight", "normalise"),
    "delta_seper_soft": (*SEPER, "kernel"),
    "delta_seper_hard": (*SEPER, "clusters"),
}


def scoring_of(name: str) -> dict[str, str]:
    """The `scoring` settings that a name stands for: `reward`, and after an `@` the `answer`."""
    reward, _, answer = name.partition("@")
    return {"reward": reward} | ({"answer": answer} if answer else {})


def check_reward_name(flag: str, name: str, more: Sequence[str] = ()) -> None:
    """Refuse a name that is neither a reward nor a GROGU reward with its answer, such as `key_entropy@logged`.

    Raises:
        InputError: names the flag, the value and the nearest reward.
    """
    reward, at, answer = name.partition("@")
    known = [*REWARDS, *more]
    if reward not in known:
        raise InputError(f"`{flag} {name}`: {nearest(reward, known)}")
    if at and (reward not in grogu.REWARDS or answer not in ("generated", "logged")):
        raise InputError(
            f"`{flag} {name}`: after `@`, a GROGU reward ({', '.join(grogu.REWARDS)}) takes `generated` or `logged`."
        )


def needs_seper(rewards: Sequence[str]) -> bool:
    """Whether a reward needs the entailment model of Delta-SePer."""
    return any(name.startswith("delta_seper") for name in rewards)


def component_rewards(rule: ScoringSettings) -> list[str]:
    """The rewards that a setting computes: one, or those that `weighted` adds up.

    Raises:
        InputError: `weighted` has no weights, or a name is no reward.
    """
    if rule.reward != "weighted":
        return [rule.reward]
    if not rule.weights:
        raise InputError("`scoring.reward: weighted` needs `scoring.weights`, such as {key_entropy: 1.0, udcg: 0.5}.")
    for name, weight in rule.weights.items():
        if name not in REWARDS:
            raise InputError(f"`scoring.weights` has `{name}`; {nearest(name, list(REWARDS))}")
        if not isinstance(weight, int | float) or not math.isfinite(weight):
            raise InputError(f"`scoring.weights.{name}` must be a number, got {weight!r}.")
    return list(rule.weights)


def relevant_settings(rule: ScoringSettings) -> dict[str, Any]:
    """The `scoring` settings that decide these rewards' values: options of other rewards may change freely."""
    names = {"reward", "question", *(option for name in component_rewards(rule) for option in READS.get(name, ()))}
    names |= {"weights"} if rule.reward == "weighted" else set()
    return {name: getattr(rule, name) for name in sorted(names)}


def has_label(turn: Turn, label: str) -> bool:
    """Whether a turn names a relevant document (grade 1 or above), or an answer with a word in it."""
    if label == "relevant":
        return any(grade >= 1 for grade in turn.relevant.values())
    return any(answer.strip() for answer in turn.answers)


def reward_label(rule: ScoringSettings) -> str:
    """The name of the reward in tables: `key_entropy`, or `key_entropy@logged` where the logged reply is scored."""
    logged = rule.answer == "logged" and set(component_rewards(rule)) & {*grogu.REWARDS}
    return f"{rule.reward}@logged" if logged else rule.reward


def has_reward(turn: Turn, rule: ScoringSettings) -> bool:
    """Whether a turn has the labels that the reward needs."""
    return all(has_label(turn, NEEDS[name]) for name in component_rewards(rule) if name in NEEDS)


def check_labels(turns: Sequence[Turn], rule: ScoringSettings, where: str) -> None:
    """Make sure, before anything is computed, that every turn has the labels of the reward.

    Raises:
        InputError: names the reward, the field and in how many turns it is missing.
    """
    for name in component_rewards(rule):
        label = NEEDS.get(name)
        missing = sum(not has_label(turn, label) for turn in turns) if label else 0
        if missing:
            raise InputError(
                f"the reward `{name}` needs `{label}` in every turn; {missing} of {len(turns)} turns of {where} have "
                f"none. `key_entropy` needs no label."
            )
