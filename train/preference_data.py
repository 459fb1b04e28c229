"""Convert pairs to data sets for TRL, and check how they are tokenized."""

from collections.abc import Iterable, Mapping
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

SFT_COLUMNS = {"completion": "chosen"}  # column of TRL -> side of a pair
DPO_COLUMNS = {"chosen": "chosen", "rejected": "rejected"}


def training_rows(
    pairs: Iterable[Pair],
    columns: Mapping[str, str],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int | None,
    name: str,
) -> list[dict[str, Any]]:
    """Build the rows for a TRL trainer, and check that training and inference tokenize them in the same way.

    Checks that the prompt's tokens are a prefix of prompt + completion, and that the completion ends in an end-of-turn
    token, ignoring white space after it. Warns about sequences that `max_length` truncates.

    Args:
        pairs: preference pairs; each becomes one row.
        columns: `SFT_COLUMNS` or `DPO_COLUMNS`.
        model: the model to train.
        tokenizer: its tokenizer.
        max_length: maximum length of the trainer, in tokens.
        name: name of the stage, for messages.

    Returns:
        Rows with the `prompt` as messages for the chat template, the columns, and the `length` of the longest sequence
        in tokens, by which the trainer groups rows.

    Raises:
        InputError: a pair fails a check; names its turn.
    """
    rows, cut, stop_ids = [], 0, stop_ids_of(model, tokenizer)
    for pair in pairs:
        messages = normalize_messages(tokenizer, pair.prompt)
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        row = {"prompt": messages, "length": 0}
        for column, side in columns.items():
            row[column] = getattr(pair, side)
            token_ids = tokenizer.apply_chat_template(messages + row[column], return_dict=False)
            if token_ids[: len(prompt)] != prompt:
                raise InputError(
                    f"{name}, turn `{pair.id}`: the tokens of the prompt are not a prefix of prompt + {side} rewrite; "
                    f"the model's chat template renders them differently. Use a template that only appends."
                )
            completion = token_ids[len(prompt) :]
            while completion and not tokenizer.decode([completion[-1]]).strip():
                completion = completion[:-1]
            if not completion or completion[-1] not in stop_ids:
                raise InputError(
                    f"{name}, turn `{pair.id}`: the {side} rewrite does not end in an end-of-turn token "
                    f"({tokenizer.convert_ids_to_tokens(list(stop_ids))}); the model would never learn to stop."
                )
            cut += max_length is not None and len(token_ids) > max_length
            row["length"] = max(row["length"], len(token_ids))
        rows.append(row)
    if cut:
        log.warning("%s: `max_length` %d truncates %d sequences in %d rows", name, max_length, cut, len(rows))
    return rows


def data_set_on_disk(rows: list[dict[str, Any]], folder: Path) -> Dataset:
    """Save the rows as a data set that every process reads from the same files.

    TRL caches the reference's log-probabilities beside these files. For a data set in memory, it would use a different
    temporary folder in each process.
    """
    if process()[0] == 0:
        Dataset.from_list(rows).save_to_disk(folder)
    wait_for_all()
    return load_from_disk(folder)
