"""Items with passages, in the format of the published UDCG tool. `scoring.utility` documents the fields."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, Strict

from core.artifacts import read_json_lines
from core.errors import InputError, first_line
from core.json_records import parse_record
from core.records import GenerationInput, HistoryMessage, RewardInput
from core.schema import Text
from scoring.registry import REWARDS

Probability = Annotated[float, Field(ge=0, le=1)]
RetrieverScore = Annotated[float, Field(ge=-1e300, le=1e300)]


@dataclass(frozen=True)
class PassageInfo:
    """Earlier results of a model for a passage."""

    no_res_prob: Probability | None = None


@dataclass(frozen=True)
class ItemPassage:
    """A passage of an item."""

    text: str
    is_relevant: Annotated[bool, Strict()] | None = None
    score: RetrieverScore = 0.0
    no_res_prob: Probability | None = None
    models_info: dict[str, PassageInfo] = field(default_factory=dict)

    def abstention(self, model: str) -> float | None:
        """The probability that a model abstains, or None if the passage does not have it."""
        info = self.models_info.get(model, PassageInfo())
        return self.no_res_prob if info.no_res_prob is None else info.no_res_prob


@dataclass(frozen=True)
class Item:
    """The fields of an item that rewards read or add results to."""

    question: Text
    passages: tuple[ItemPassage, ...]
    history: tuple[HistoryMessage, ...] = ()
    answers: tuple[str, ...] = ()
    reply: str = ""
    models_info: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def reward_input(self) -> RewardInput:
        """The item as input to the rewards."""
        labels = tuple(passage.is_relevant for passage in self.passages)
        answers = tuple(answer for answer in self.answers if answer.strip())
        return RewardInput(
            GenerationInput.of(self.history, self.question, [passage.text for passage in self.passages]),
            labels if labels and None not in labels else None,
            answers,
            tuple(passage.score for passage in self.passages),
            self.reply or next(iter(answers), ""),
        )

    def abstentions(self, model: str) -> list[float] | None:
        """For each passage, the probability that a model abstains; None unless every passage has one."""
        probabilities = [passage.abstention(model) for passage in self.passages]
        return probabilities if probabilities and None not in probabilities else None


def parse_item(item: dict[str, Any], place: str, reward: str) -> Item:
    """Check an item for a reward, or for `validity`, which needs `is_relevant`.

    Raises:
        InputError: a field is missing or invalid, or the item lacks a label that the reward needs; names the place.
    """
    try:
        json.dumps(item, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: a value cannot be written as JSON in UTF-8: {first_line(error)}.") from error
    parsed = parse_record(Item, item, place)
    if not isinstance(item.get(reward, {}), dict):
        raise InputError(
            f"{place}: `{reward}` must be an object with a value for each model, got {item[reward]!r:.60}."
        )
    needs = "relevant" if reward == "validity" else REWARDS[reward].needs
    unlabelled = [number for number, passage in enumerate(parsed.passages) if passage.is_relevant is None]
    if needs == "relevant" and unlabelled:
        subject = "this check" if reward == "validity" else f"the reward `{reward}`"
        raise InputError(
            f"{place}: {subject} needs `is_relevant` (true or false) in every passage; passage {unlabelled[0]} lacks "
            "it."
        )
    if needs == "answers" and not parsed.reward_input.answers:
        raise InputError(f"{place}: the reward `{reward}` needs `answers`.")
    return parsed


def read_items(path: Path, reward: str) -> list[dict[str, Any]]:
    """Read and check the items of a file: JSON lines, one JSON list, or one object over several lines.

    Raises:
        InputError: the file or an item is invalid; names the place.
    """
    try:
        with path.open(encoding="utf-8-sig") as handle:
            start = handle.read(1024).lstrip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--input {path}: cannot be read ({error}).") from error
    if start.startswith("[") or start.partition("\n")[0].rstrip() == "{":
        try:
            content = json.loads(path.read_text("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise InputError(f"--input {path}: not valid JSON: {error}.") from error
        objects = content if isinstance(content, list) else [content]
        items = [(f"item {number}", item) for number, item in enumerate(objects)]
    else:
        items = list(read_json_lines(path))
    if not items:
        raise InputError(f"--input {path}: the file has no items.")
    for place, item in items:
        if not isinstance(item, dict):
            raise InputError(f"{path}:{place}: expected a JSON object, got {type(item).__name__}.")
        parse_item(item, f"{path}:{place}", reward)
    return [item for _, item in items]
