"""The files of `scoring.utility`: items in the format of the published UDCG tool, and resumable outputs.

The head of `scoring.utility` lists the fields of an item.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from filelock import FileLock, Timeout
from pydantic import Field, Strict

from core.artifacts import read_json, read_json_lines, truncate_partial_line, write_json
from core.errors import InputError, first_line
from core.json_records import parse_record
from core.records import GenerationInput, HistoryMessage, RewardInput
from core.schema import Text
from scoring.registry import NEEDS

Probability = Annotated[float, Field(ge=0, le=1)]
RetrieverScore = Annotated[float, Field(ge=-1e300, le=1e300)]


@dataclass(frozen=True)
class PassageInfo:
    """What a model has found out about a passage before."""

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
        """The probability that a model abstains, where the item carries it."""
        info = self.models_info.get(model, PassageInfo())
        return self.no_res_prob if info.no_res_prob is None else info.no_res_prob


@dataclass(frozen=True)
class Item:
    """The fields of an item that rewards read, or that the results are added to."""

    question: Text
    passages: tuple[ItemPassage, ...]
    history: tuple[HistoryMessage, ...] = ()
    answers: tuple[str, ...] = ()
    reply: str = ""
    models_info: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def reward_input(self) -> RewardInput:
        """The item as input of the rewards."""
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
        """The probability that a model abstains from each passage, where the item carries all of them."""
        probabilities = [passage.abstention(model) for passage in self.passages]
        return probabilities if probabilities and None not in probabilities else None


def parse_item(item: dict[str, Any], place: str, reward: str) -> Item:
    """Check an item.

    Args:
        item: the JSON object.
        place: file and line, for the message.
        reward: the reward; `validity` needs `is_relevant`.

    Raises:
        InputError: a field is missing or not usable, or the reward needs a label that is missing.
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
    if reward == "validity" or NEEDS.get(reward) == "relevant":
        for number, passage in enumerate(parsed.passages):
            if passage.is_relevant is None:
                needing = "this check" if reward == "validity" else f"the reward `{reward}`"
                raise InputError(
                    f"{place}: {needing} needs `is_relevant` (true or false) on every passage; passage {number} has "
                    "none."
                )
    if NEEDS.get(reward) == "answers" and not parsed.reward_input.answers:
        raise InputError(f"{place}: the reward `{reward}` needs `answers`.")
    return parsed


def read_items(path: Path, reward: str) -> list[dict[str, Any]]:
    """The checked items of a file: JSON lines, one JSON list, or one object over several lines.

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
            content = json.loads(path.read_text("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise InputError(f"--input {path}: not valid JSON: {error}.") from error
        objects = content if isinstance(content, list) else [content]
        items = [(f"item {number}", item) for number, item in enumerate(objects)]
    else:
        items = list(read_json_lines(path))
    if not items:
        raise InputError(f"--input {path}: no items in it.")
    for place, item in items:
        if not isinstance(item, dict):
            raise InputError(f"{path}:{place}: expected a JSON object, got {type(item).__name__}.")
        parse_item(item, f"{path}:{place}", reward)
    return [item for _, item in items]


class PartialOutput:
    """An output that is being written: `<output>.part` has the scored items, `<output>.part.json` the settings.

    Args:
        output: the file that the items go to in the end.
        settings: everything that decides the results, with `reward` and `model`.
    """

    def __init__(self, output: Path, settings: dict[str, Any]):
        self.output, self.settings = output, settings
        self.part = output.with_name(f"{output.name}.part")
        self.settings_file = output.with_name(f"{output.name}.part.json")
        self.lock = FileLock(output.with_name(f".{output.name}.lock"), blocking=False)
        self.way_out = f"remove {self.part} to start again"

    def resume(self, items: Sequence[dict[str, Any]], source: Path) -> list[dict[str, Any]]:
        """The items that an interrupted run has scored. A partial last line is removed.

        Args:
            items: all items.
            source: the file they come from, for messages.

        Raises:
            InputError: the settings were different, or a record is not that of the item at its place.
        """
        try:
            before = read_json(self.settings_file)
        except (InputError, OSError) as error:
            raise InputError(
                f"{self.settings_file}, which has the settings of {self.part}, is missing or damaged; {self.way_out}."
            ) from error
        for name, value in self.settings.items():
            if before.get(name) != value:
                raise InputError(
                    f"{self.part} was started with another `{name}` ({before.get(name)!r}, now {value!r}); "
                    f"{self.way_out}."
                )
        truncate_partial_line(self.part)
        try:
            scored = [item for _, item in read_json_lines(self.part)]
        except InputError as error:
            raise InputError(f"{error} {self.way_out[0].upper()}{self.way_out[1:]}.") from error
        if len(scored) > len(items):
            raise InputError(f"{self.part} has {len(scored)} items, {source} {len(items)}; {self.way_out}.")
        reward, model = self.settings["reward"], self.settings["model"]
        for number, (result, item) in enumerate(zip(scored, items, strict=False), 1):
            if not is_result_of(result, item, reward, model):
                raise InputError(
                    f"{self.part}:{number}: is not item {number} of {source} with its `{reward}`; {self.way_out}."
                )
        return scored

    @property
    def started(self) -> bool:
        """Whether an interrupted run has left items."""
        return self.part.exists() and self.part.stat().st_size > 0

    def open(self) -> None:
        """Open the file for more items, and keep other processes from it.

        Raises:
            InputError: another process is writing it.
        """
        self.output.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.lock.acquire()
        except Timeout as error:
            raise InputError(
                f"another process is writing {self.part}; wait for it, or name another `--output`."
            ) from error
        self.handle = self.part.open("a", encoding="utf-8")

    def append(self, items: Iterable[dict[str, Any]]) -> None:
        if not self.started:
            write_json(self.settings_file, self.settings)
        self.handle.writelines(json.dumps(item, ensure_ascii=False, allow_nan=False) + "\n" for item in items)
        self.handle.flush()

    def close(self) -> None:
        """Release the file; an empty one is removed."""
        self.handle.close()
        if not self.started:
            self.part.unlink()
            self.settings_file.unlink(missing_ok=True)
        self.lock.release()

    def finish(self, items: Sequence[dict[str, Any]]) -> None:
        """Replace the output by all items: a JSON list where its name ends in `.json`, else JSON lines."""
        if self.output.suffix == ".json":
            write_json(self.output, items)
            self.part.unlink()
        else:
            self.part.replace(self.output)
        self.settings_file.unlink()


def is_result_of(result: dict[str, Any], item: dict[str, Any], reward: str, model: str) -> bool:
    """Whether a record is an item with the value of a reward, or the reason why it has none."""
    if not isinstance(result.get(reward), dict) or model not in result[reward]:
        return False
    added = (reward, "errors", "models_info", "passages")
    texts = [[passage.get("text") for passage in each.get("passages", [])] for each in (result, item)]
    return texts[0] == texts[1] and all(result.get(key) == value for key, value in item.items() if key not in added)
