"""Score passage lists with any reward, without training: `scoring.utility` in Python.

    from core.language_model import load_language_model
    from scoring.score_items import score_item

    score_item(item, "key_entropy", load_language_model("Qwen/Qwen2.5-1.5B-Instruct"))

The head of `scoring.utility` lists the fields of an item.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from core.errors import InputError
from core.language_model import LanguageModel
from core.records import Score
from core.schema import validate
from core.scoring_settings import RewardSettings, ScoringSettings
from scoring import grogu
from scoring.entailment import load_entailment
from scoring.generator import Generator
from scoring.scorer import Scorer
from scoring.udcg import udcg
from scoring.utility_io import parse_item


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
        reward: as `core.settings.RewardSettings.reward`.
        lm: the generator; None where UDCG finds every `no_res_prob` in the items, and for `reciprocal_rank`.
        name: key of the results; the model's name when not given.
        max_new_tokens: longest answer.
        batch_tokens: tokens per batch.
        seed: of the answers that Delta-SePer samples.
        options: other fields of `core.settings.RewardSettings`.

    Returns:
        The items with `<reward>: {name: value}`. Where there is no value: None, and the reason in
        `errors: {<reward>: {name: reason}}`.

    Raises:
        InputError: an item lacks a field that the reward needs, or a reward or option is unknown or out of range.
    """
    name = name or (lm.name if lm else "")
    rule = ScoringSettings(**asdict(validate(RewardSettings, options | {"reward": reward})))
    parsed = [parse_item(item, f"item {number}", reward) for number, item in enumerate(items)]
    known = [item.abstentions(name) if reward == "udcg" else None for item in parsed]
    unknown = [item for item, probabilities in zip(parsed, known, strict=True) if probabilities is None]
    if lm is None and reward != "reciprocal_rank" and any(item.passages for item in unknown):
        raise InputError(f"the reward `{reward}` needs a generator, `lm`, for these items; got None.")
    device = lm.device.type if lm else None
    entailment = load_entailment(rule.entailment, batch_tokens, device) if reward.startswith("delta_seper") else None
    generator = Generator(lm, max_new_tokens, batch_tokens) if lm else None
    scorer = Scorer(generator, rule, entailment, seed)
    computed = iter(scorer.scores([item.reward_input for item in unknown], [reward]) if unknown else [])
    results = []
    for item, probabilities in zip(items, known, strict=True):
        if probabilities is None:
            score = next(computed)[reward]
        else:
            score = Score(no_res=tuple(probabilities))
        results.append(with_score(item, reward, name, score, rule))
    return results


def with_score(item: dict[str, Any], reward: str, name: str, score: Score, rule: ScoringSettings) -> dict[str, Any]:
    """An item with the value of a reward, or the reason why there is none, and what the reward was made of."""
    item = with_error(item, reward, name, score.error)
    if reward == "udcg" and score.error is None:
        return with_udcg(item, name, score.no_res, rule)
    result = item | {reward: item.get(reward, {}) | {name: score.value}}
    if reward in grogu.REWARDS:
        result["models_info"] = item.get("models_info", {}) | {name: token_record(score)}
    elif reward.startswith("delta_seper"):
        record = {"answer": score.answer, "cut": score.cut}
        result["models_info"] = item.get("models_info", {}) | {name: record}
    return result


def with_udcg(item: dict[str, Any], name: str, no_res: Sequence[float], rule: ScoringSettings) -> dict[str, Any]:
    """An item with UDCG in the output format of the published tool."""
    passages = []
    for passage, probability in zip(item["passages"], no_res, strict=True):
        infos = passage.get("models_info", {})
        info = infos.get(name, {}) | {"no_res_prob": probability}
        passages.append(passage | {"models_info": infos | {name: info}})
    relevant = [passage["is_relevant"] for passage in passages]
    value = udcg(no_res, relevant, rule.relevant_weight, rule.irrelevant_weight, rule.normalise)
    return item | {"passages": passages, "udcg": item.get("udcg", {}) | {name: value}}


def with_error(item: dict[str, Any], reward: str, name: str, error: str | None) -> dict[str, Any]:
    """An item with the reason why a reward has no value; the reason of an earlier run is replaced or removed."""
    errors = {key: dict(reasons) for key, reasons in item.get("errors", {}).items()}
    errors.setdefault(reward, {}).pop(name, None)
    if error:
        errors[reward][name] = error
    if not errors[reward]:
        del errors[reward]
    others = {key: value for key, value in item.items() if key != "errors"}
    return others | ({"errors": errors} if errors else {})


def token_record(score: Score) -> dict[str, Any]:
    """The answer, and of each token its text, entropies and log-probabilities in nats, and whether it is key."""
    stats = score.stats
    rows = zip(stats.tokens, stats.h0, stats.hd, stats.logp0, stats.logpd, strict=True) if stats else ()
    tokens = [
        {"text": text, "H_0": h0, "H_D": hd, "logp_0": logp0, "logp_D": logpd, "key": i in score.key}
        for i, (text, h0, hd, logp0, logpd) in enumerate(rows)
    ]
    return {
        "answer": score.answer, "rule": score.rule, "abstains": score.abstains, "cut": score.cut, "tokens": tokens
    }  # fmt: skip
