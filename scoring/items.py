"""JSON items that are judged without training: what they hold, checked and read.

Their format is that of the published UDCG tool; the head of `scoring.utility` says which fields there are.
"""

import json
from pathlib import Path
from typing import Any

from core.artifacts import read_json_lines
from core.errors import InputError, first_line
from scoring.labels import NEEDS

ROLES = ("user", "assistant")
LARGEST_SCORE = 1e300  # of a retriever


def read_items(path: Path, reward: str) -> list[dict[str, Any]]:
    """Items of a JSON-lines file, or of a file that holds one JSON list, or one item over several lines.

    Raises:
        InputError: the file or an item is not usable; names the place.
    """
    try:
        with path.open(encoding="utf-8-sig") as handle:
            start = handle.read(1024).lstrip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--input {path}: cannot be read ({error}).") from error
    if start.startswith("[") or start.partition("\n")[0].rstrip() == "{":
        try:
            found = json.loads(path.read_text("utf-8-sig"))
            items = [
                (f"item {number}", item) for number, item in enumerate(found if isinstance(found, list) else [found])
            ]
        except (ValueError, RecursionError) as error:
            raise InputError(f"--input {path}: not valid JSON: {error}.") from error
    else:
        items = list(read_json_lines(path))
    if not items:
        raise InputError(f"--input {path}: no items in it.")
    for place, item in items:
        if not isinstance(item, dict):
            raise InputError(f"{path}:{place}: expected a JSON object, got {type(item).__name__}.")
        check_item(item, f"{path}:{place}", reward)
    return [item for _, item in items]


def check_item(item: dict[str, Any], place: str, reward: str) -> None:
    """Make sure that an item can be judged by a reward; or by `validity`, which goes by `is_relevant`.

    Raises:
        InputError: a field is missing or of the wrong type; begins with `place`.
    """
    try:
        json.dumps(item, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: holds what JSON or UTF-8 cannot: {first_line(error)}.") from error
    passages = item.get("passages")
    if not isinstance(item.get("question"), str) or not item["question"].strip():
        raise InputError(f"{place}: `question` must be a text that is not empty, got {item.get('question')!r}.")
    if not isinstance(passages, list) or not all(isinstance(p, dict) for p in passages):
        raise InputError(f'{place}: `passages` must be a list of {{"text"}}, got {passages!r:.60}.')
    for number, passage in enumerate(passages):
        if not isinstance(passage.get("text"), str):
            raise InputError(f"{place}: passage {number} has no `text`, or it is no text.")
        score = passage.get("score", 0.0)
        if isinstance(score, bool) or not isinstance(score, int | float) or abs(score) > LARGEST_SCORE:
            raise InputError(
                f"{place}: passage {number}: `score` must be a number of at most 1e300, got {score!r:.60}."
            )
        infos = passage.get("models_info", {})
        if not isinstance(infos, dict) or not all(isinstance(info, dict) for info in infos.values()):
            raise InputError(
                f"{place}: passage {number}: `models_info` must hold an object for each model, or be left out."
            )
        for info in (passage, *infos.values()) if reward == "udcg" else ():
            if "no_res_prob" in info and not is_probability(info["no_res_prob"]):
                raise InputError(
                    f"{place}: passage {number}: `no_res_prob` must be from 0 to 1, got {info['no_res_prob']!r:.60}; "
                    "without it, it is computed."
                )
        by_label = reward == "validity" or NEEDS.get(reward) == "relevant"
        if by_label and not isinstance(passage.get("is_relevant"), bool):
            who = "this check" if reward == "validity" else f"the reward `{reward}`"
            raise InputError(
                f"{place}: {who} needs `is_relevant` (true or false) on every passage; passage {number} has "
                f"{passage.get('is_relevant')!r}."
            )
    history = item.get("history", [])
    if not isinstance(history, list) or not all(
        isinstance(m, dict) and m.get("role") in ROLES and isinstance(m.get("content"), str) for m in history
    ):
        raise InputError(
            f'{place}: `history` must be a list of {{"role": "user" or "assistant", "content"}}, got {history!r:.60}.'
        )
    for name in (reward, "models_info"):
        if not isinstance(item.get(name, {}), dict):
            raise InputError(f"{place}: `{name}` must hold a value for each model, got {item[name]!r:.60}.")
    errors = item.get("errors", {})
    if not isinstance(errors, dict) or not all(isinstance(reasons, dict) for reasons in errors.values()):
        raise InputError(f"{place}: `errors` must hold, for each reward, a reason for each model, got {errors!r:.60}.")
    if not isinstance(item.get("reply") or "", str):
        raise InputError(f"{place}: `reply` must be a text, got {item['reply']!r:.60}.")
    answers = item.get("answers", [])
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        raise InputError(f"{place}: `answers` must be a list of texts, got {answers!r:.60}.")
    if NEEDS.get(reward) == "answers" and not any(answer.strip() for answer in answers):
        raise InputError(f"{place}: the reward `{reward}` needs `answers`.")


def is_probability(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def as_item(item: dict[str, Any]):
    """A JSON item as what the rewards judge."""
    from core.records import GenerationInput, RewardInput

    passages = item["passages"]
    labelled = bool(passages) and all(isinstance(p.get("is_relevant"), bool) for p in passages)
    return RewardInput(
        GenerationInput.of(item.get("history", []), item["question"], [passage["text"] for passage in passages]),
        tuple(passage["is_relevant"] for passage in passages) if labelled else None,
        tuple(answer for answer in item.get("answers", []) if answer.strip()),
        tuple(float(passage.get("score", 0.0)) for passage in passages),
        item.get("reply") or next((answer for answer in item.get("answers", []) if answer.strip()), ""),
    )
