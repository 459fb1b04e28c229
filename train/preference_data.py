"""Pairs as TRL data sets, with the checks that a silent tokenisation fault would fail."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.artifacts import Stage
from core.chat import normalize_messages
from core.errors import InputError
from core.runtime import log, process, wait_for_all

if TYPE_CHECKING:
    from datasets import Dataset


def preference_rows(pairs: Stage, tokenizer) -> list[dict[str, Any]]:
    """Rows with `prompt`, `chosen` and `rejected` messages, the prompt as the model's template takes it."""
    return [
        {"prompt": normalize_messages(tokenizer, r["prompt"]), "chosen": r["chosen"], "rejected": r["rejected"]}
        for r in pairs.records()
    ]


def warm_up_rows(pairs: Stage, tokenizer) -> list[dict[str, Any]]:
    """Rows with `prompt` and `completion`: the highest-scoring rewrite of each pair."""
    return [{"prompt": row["prompt"], "completion": row["chosen"]} for row in preference_rows(pairs, tokenizer)]


def checked_rows(
    rows: Sequence[dict[str, Any]], tokenizer, stop_ids: Sequence[int], max_length: int | None, what: str
) -> list[dict[str, Any]]:
    """Make sure that what the trainer will see is what the model sees in use.

    The prompt's tokens are a prefix of prompt + completion; the completion ends in an end-of-turn token (blanks after
    it aside); sequences that `max_length` cuts are counted and reported.

    Returns:
        The rows with their `length`, the tokens of the longest sequence, by which the trainer groups them.

    Raises:
        InputError: a row fails, with its number and text; or every row would be cut.
    """
    cut, made = 0, []
    for number, row in enumerate(rows):
        longest = 0
        prompt = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=False)
        for column in ("chosen", "rejected", "completion"):
            if column not in row:
                continue
            whole = tokenizer.apply_chat_template(row["prompt"] + row[column], return_dict=False)
            if whole[: len(prompt)] != prompt:
                raise InputError(
                    f"{what} row {number}: the tokens of the prompt are not a prefix of prompt + {column}; "
                    f"the model's chat template renders them differently. Use a template that appends."
                )
            completion = whole[len(prompt) :]
            while completion and not tokenizer.decode([completion[-1]]).strip():
                completion = completion[:-1]
            if not completion or completion[-1] not in stop_ids:
                raise InputError(
                    f"{what} row {number}: the {column} text does not end in an end-of-turn token "
                    f"({tokenizer.convert_ids_to_tokens(list(stop_ids))}); the model would never learn to stop."
                )
            cut += max_length is not None and len(whole) > max_length
            longest = max(longest, len(whole))
        made.append(row | {"length": longest})
    if cut:
        log.warning("%s: `max_length` %d cuts %d sequences of %d rows", what, max_length, cut, len(rows))
    return made


def data_set_on_disk(rows: list[dict[str, Any]], folder: Path) -> "Dataset":
    """The rows as a data set that every process reads from the same files.

    TRL keeps the log-probabilities of the reference in a file beside the data set's. For a data set in memory, that
    is a temporary folder, which each process has for itself alone.
    """
    from datasets import Dataset, load_from_disk

    if process()[0] == 0:
        Dataset.from_list(rows).save_to_disk(folder)
    wait_for_all()
    return load_from_disk(folder)


def check_batch(batch: dict[str, Any], what: str) -> None:
    """Make sure that no padding is among the labels of a collated batch.

    Raises:
        InputError: it is.
    """
    counted = batch["completion_mask"].bool() if "completion_mask" in batch else batch["labels"] != -100
    if "attention_mask" in batch and (counted & ~batch["attention_mask"].bool()).any():
        raise InputError(f"{what}: padding is among the labels of the first batch.")
    if not counted.any(-1).all():
        raise InputError(f"{what}: a sequence of the first batch has no label; `max_length` cuts its completion away.")
