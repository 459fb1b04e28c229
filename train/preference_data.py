"""Pairs as data sets of TRL, with checks that find silent tokenization faults."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, load_from_disk
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from core.chat import normalize_messages
from core.distributed import process, wait_for_all
from core.errors import InputError
from core.language_model import stop_ids_of
from core.progress import log
from core.records import Pair


def preference_rows(pairs: Iterable[Pair], tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    """Rows with `prompt`, `chosen` and `rejected` messages, the prompt in the form that the chat template takes."""
    return [
        {"prompt": normalize_messages(tokenizer, pair.prompt), "chosen": pair.chosen, "rejected": pair.rejected}
        for pair in pairs
    ]


def sft_rows(pairs: Iterable[Pair], tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    """Rows with `prompt` and `completion`: the highest-scoring rewrite of each pair."""
    return [{"prompt": row["prompt"], "completion": row["chosen"]} for row in preference_rows(pairs, tokenizer)]


def check_rows(
    rows: Sequence[dict[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
    model: PreTrainedModel,
    max_length: int | None,
    name: str,
) -> list[dict[str, Any]]:
    """Make sure that the trainer will see what the model sees in use.

    The tokens of the prompt are a prefix of prompt + completion; the completion ends in an end-of-turn token (white
    space after it aside); sequences that `max_length` cuts are counted and reported.

    Args:
        rows: of `preference_rows` or `sft_rows`.
        tokenizer: of the model.
        model: what is trained.
        max_length: of the trainer, in tokens.
        name: of the stage, for messages.

    Returns:
        The rows with their `length`: the tokens of the longest sequence, by which the trainer groups them.

    Raises:
        InputError: a row fails; gives its number and text.
    """
    cut, checked, stop_ids = 0, [], stop_ids_of(model, tokenizer)
    for number, row in enumerate(rows):
        longest = 0
        prompt = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=False)
        for column in ("chosen", "rejected", "completion"):
            if column not in row:
                continue
            whole = tokenizer.apply_chat_template(row["prompt"] + row[column], return_dict=False)
            if whole[: len(prompt)] != prompt:
                raise InputError(
                    f"{name} row {number}: the tokens of the prompt are not a prefix of prompt + {column}; "
                    f"the model's chat template renders them differently. Use a template that appends."
                )
            completion = whole[len(prompt) :]
            while completion and not tokenizer.decode([completion[-1]]).strip():
                completion = completion[:-1]
            if not completion or completion[-1] not in stop_ids:
                raise InputError(
                    f"{name} row {number}: the {column} text does not end in an end-of-turn token "
                    f"({tokenizer.convert_ids_to_tokens(list(stop_ids))}); the model would never learn to stop."
                )
            cut += max_length is not None and len(whole) > max_length
            longest = max(longest, len(whole))
        checked.append(row | {"length": longest})
    if cut:
        log.warning("%s: `max_length` %d cuts %d sequences of %d rows", name, max_length, cut, len(rows))
    return checked


def data_set_on_disk(rows: list[dict[str, Any]], folder: Path) -> Dataset:
    """The rows as a data set that every process reads from the same files.

    TRL caches the log-probabilities of the reference beside the files of the data set. For a data set in memory that
    is a temporary folder, a different one in each process.
    """
    if process()[0] == 0:
        Dataset.from_list(rows).save_to_disk(folder)
    wait_for_all()
    return load_from_disk(folder)


def check_batch(batch: dict[str, Any], name: str) -> None:
    """Make sure that no padding is among the labels of a collated batch.

    Raises:
        InputError: it is.
    """
    counted = batch["completion_mask"].bool() if "completion_mask" in batch else batch["labels"] != -100
    if "attention_mask" in batch and (counted & ~batch["attention_mask"].bool()).any():
        raise InputError(f"{name}: padding is among the labels of the first batch.")
    if not counted.any(-1).all():
        raise InputError(f"{name}: a sequence of the first batch has no label; `max_length` cuts its completion away.")
