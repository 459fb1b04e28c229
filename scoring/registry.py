"""The rewards by name: how each is computed, the label that it needs, and the settings that it reads.

A new reward is a function in a new file, an entry of `REWARDS`, and its name in `core.scoring_settings.Reward`.
Imports no torch: `--help` and checks stay quick.
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
    """A reward: a function that scores each list of a batch, the `scoring` settings that it reads, and the label that
    every turn needs, `relevant` or `answers`."""

    scores: Callable[[Batch], list[Score]]
    settings: tuple[str, ...] = ()
    needs: str | None = None


GROGU = ("answer", "reply_tokens", "alpha", "fallback", "fallback_by", "log_ppl")
UDCG = ("abstention", "relevant_weight", "irrelevant_weight", "normalise")
SEPER = ("samples", "sample_tokens", "aggregate", "entailment")
REWARDS: dict[str, Reward] = {
    **{name: Reward(partial(grogu.scores, name), GROGU) for name in grogu.REWARDS},
    "udcg": Reward(udcg.scores, UDCG, "relevant"),
    "reciprocal_rank": Reward(baselines.reciprocal_rank_scores, (), "relevant"),
    "delta_seper_soft": Reward(seper.soft_scores, (*SEPER, "kernel"), "answers"),
    "delta_seper_hard": Reward(seper.hard_scores, (*SEPER, "clusters"), "answers"),
    "answer_logprob": Reward(baselines.answer_logprob_scores, (), "answers"),
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
        InputError: `weighted` has no weights, or a name is not a reward.
    """
    if rule.reward != "weighted":
        return [rule.reward]
    if not rule.weights:
        raise InputError("`scoring.reward: weighted` needs `scoring.weights`, such as {key_entropy: 1.0, udcg: 0.5}.")
    for name in rule.weights:
        if name not in REWARDS:
            raise InputError(f"`scoring.weights` has `{name}`; {nearest(name, list(REWARDS))}")
    return list(rule.weights)


def relevant_settings(rule: ScoringSettings) -> dict[str, Any]:
    """The `scoring` settings that decide these rewards' values: options of other rewards may change freely."""
    names = {"reward", "question", *(option for name in component_rewards(rule) for option in REWARDS[name].settings)}
    names |= {"weights"} if rule.reward == "weighted" else set()
    return {name: getattr(rule, name) for name in sorted(names)}


def has_label(turn: Turn, label: str | None) -> bool:
    """Whether a turn names a relevant document (grade 1 or above), or an answer with a word in it."""
    if label == "relevant":
        return any(grade >= 1 for grade in turn.relevant.values())
    return label is None or any(answer.strip() for answer in turn.answers)


def reward_label(rule: ScoringSettings) -> str:
    """The name of the reward in tables: `key_entropy`, or `key_entropy@logged` where the logged reply is scored."""
    logged = rule.answer == "logged" and set(component_rewards(rule)) & {*grogu.REWARDS}
    return f"{rule.reward}@logged" if logged else rule.reward


def has_reward(turn: Turn, rule: ScoringSettings) -> bool:
    """Whether a turn has the labels that the reward needs."""
    return all(has_label(turn, REWARDS[name].needs) for name in component_rewards(rule))


def check_labels(turns: Sequence[Turn], rule: ScoringSettings, where: str) -> None:
    """Make sure, before anything is computed, that every turn has the labels of the reward.

    Raises:
        InputError: names the reward, the field and in how many turns it is missing.
    """
    for name in component_rewards(rule):
        label = REWARDS[name].needs
        if missing := sum(not has_label(turn, label) for turn in turns):
            raise InputError(
                f"the reward `{name}` needs `{label}` in every turn; {missing} of {len(turns)} turns of {where} have "
                f"none. `key_entropy` needs no label."
            )
