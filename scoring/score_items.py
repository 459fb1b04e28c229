"""Score passage lists with any reward, without training: `scoring.utility` in Python.

    from core.language_model import load_language_model
    from scoring.score_items import score_item

    score_item(item, "key_entropy", load_language_model("Qwen/Qwen2.5-1.5B-Instruct"))

The docstring of `scoring.utility` lists the fields of an item.
"""

from collections.abc import Sequence
from typing import Any

from core.errors import InputError
from core.language_model import LanguageModel
from core.records import Score
from core.schema import validate
from core.scoring_settings import RewardSettings
from scoring import grogu, udcg
from scoring.entailment import load_entailment
from scoring.generator import Generator
from scoring.items import Item, parse_item
from scoring.registry import needs_entailment, needs_generator
from scoring.scorer import Scorer


def score_item(item: dict[str, Any], reward: str, lm: LanguageModel | None, **options: Any) -> dict[str, Any]:
    """Score one item; see `score_items`."""
    return score_items([item], reward, lm, **options)[0]


def score_items(
    items: Sequence[dict[str, Any]],
    reward: str,
    lm: LanguageModel | None,
    name: str | None = None,
    max_new_tokens: int = 64,
    batch_tokens: int = 16384,
    seed: int = 0,
    **options: Any,
) -> list[dict[str, Any]]:
    """Score items with one reward.

    Args:
        items: JSON objects; they are not changed.
        reward: as `core.scoring_settings.RewardSettings.reward`.
        lm: the generator; may be None for `reciprocal_rank`, and for `udcg` if every passage has its `no_res_prob`.
        name: key of the results; by default the model's name.
        max_new_tokens: maximum tokens of an answer.
        batch_tokens: tokens per batch.
        seed: seed of the answers that Delta-SePer samples.
        options: other fields of `core.scoring_settings.RewardSettings`.

    Returns:
        The items with `<reward>: {name: value}`. The value is None if it cannot be computed; then
        `errors: {<reward>: {name: reason}}` gives the reason.

    Raises:
        InputError: an item lacks a field that the reward needs, or a reward or option is unknown or out of range.
    """
    name = name or (lm.name if lm else "")
    scoring = validate(RewardSettings, options | {"reward": reward})
    parsed = [parse_item(item, f"item {number}", reward) for number, item in enumerate(items)]
    known = [item.abstentions(name) if reward == "udcg" else None for item in parsed]
    unknown = [item for item, probabilities in zip(parsed, known, strict=True) if probabilities is None]
    if lm is None and any(item_needs_generator(item, reward, name) for item in parsed):
        raise InputError(f"the reward `{reward}` needs a generator, `lm`, for these items; got None.")
    generator = Generator(lm, max_new_tokens, batch_tokens) if lm else None
    entailment = None
    if lm and needs_entailment([reward]):
        entailment = load_entailment(scoring.entailment, batch_tokens, lm.device)
    computed = iter(
        Scorer(generator, scoring, entailment, seed).scores([item.reward_input for item in unknown], [reward])
    )
    results = []
    for item, probabilities in zip(items, known, strict=True):
        if probabilities is None:
            score = next(computed)[reward]
        else:
            score = udcg.score_of(probabilities, [passage["is_relevant"] for passage in item["passages"]], scoring)
        results.append(with_score(item, reward, name, score))
    return results


def item_needs_generator(item: Item, reward: str, model: str) -> bool:
    """Whether the reward of an item needs the model. UDCG does not if the item has all abstention probabilities."""
    return needs_generator([reward]) and bool(item.passages) and not (reward == "udcg" and item.abstentions(model))


def with_score(item: dict[str, Any], reward: str, name: str, score: Score) -> dict[str, Any]:
    """Add the value of a reward, or the error, and the statistics behind it to an item.

    Replaces or removes the error of an earlier run.
    """
    reasons = {key: reason for key, reason in item.get("errors", {}).get(reward, {}).items() if key != name}
    if score.error:
        reasons[name] = score.error
    errors = {key: value for key, value in (item.get("errors", {}) | {reward: reasons}).items() if value}
    result = {key: value for key, value in item.items() if key != "errors"} | ({"errors": errors} if errors else {})
    if score.no_res:
        result["passages"] = [
            with_model_info(passage, name, passage.get("models_info", {}).get(name, {}) | {"no_res_prob": probability})
            for passage, probability in zip(item["passages"], score.no_res, strict=True)
        ]
    result[reward] = item.get(reward, {}) | {name: score.value}
    if reward in grogu.REWARDS:
        return with_model_info(result, name, token_record(score))
    if needs_entailment([reward]):
        return with_model_info(result, name, {"answer": score.answer, "cut": score.cut})
    return result


def with_model_info(record: dict[str, Any], name: str, info: dict[str, Any]) -> dict[str, Any]:
    """Add results of a model to the `models_info` of an item or a passage."""
    return record | {"models_info": record.get("models_info", {}) | {name: info}}


def token_record(score: Score) -> dict[str, Any]:
    """The answer and, for each token, its text, entropies and log-probabilities in nats, and whether it is key."""
    stats = score.stats
    rows = zip(stats.tokens, stats.h0, stats.hd, stats.logp0, stats.logpd, strict=True) if stats else ()
    tokens = [
        {"text": text, "H_0": h0, "H_D": hd, "logp_0": logp0, "logp_D": logpd, "key": i in score.key}
        for i, (text, h0, hd, logp0, logpd) in enumerate(rows)
    ]
    return {name: getattr(score, name) for name in ("answer", "rule", "abstains", "cut")} | {"tokens": tokens}
