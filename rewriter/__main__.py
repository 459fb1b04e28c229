"""Rewrite a file of turns, or chat with a rewriter in the terminal.

    python -m rewriter runs/quickstart
    python -m rewriter runs/quickstart --input turns.jsonl --output queries.jsonl
    python -m rewriter runs/quickstart --input turns.jsonl --n 4

With `--input`, the output has one line per turn: `{"id", "query"}`, or `{"id", "queries"}` with distinct samples if
`--n` is above 1. Base model, prompt and limits come from the `rewriter.json` that training saves beside the adapter;
flags override them.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from core.artifacts import write_atomic
from core.cli import parse_flags, run_command
from core.errors import InputError
from core.progress import Progress, set_up_logging
from core.records import Turn
from core.schema import Dtype, NonNegative, Positive, Validated
from core.settings import RewriterSettings
from core.stage_runner import batched
from rewriter.adapter_settings import load_adapter_settings
from rewriter.chat import converse
from rewriter.conversations import read_turns

if TYPE_CHECKING:
    from rewriter.rewriter import Rewriter

BATCH_SIZE = 32  # turns per batch
OPTIONS = ("model", "instruction", "max_new_tokens", "history_messages", "history_words", "dtype", "batch_tokens")


@dataclass(kw_only=True)
class RewriterFlags(Validated):
    """Flags of the command.

    Args:
        rewriter: run folder, adapter folder, folder of a merged model, or the Hub id of one of these.
        adapter: PEFT adapter, such as `<run>/adapter`; the same as `rewriter`.
        model: base model: folder, Hub id or `.gguf` file; used alone if there is no adapter.
        input: turns (JSONL); by default, the command asks for questions.
        output: file for the queries; by default standard output.
        n: queries for each turn: 1 for the most likely one, more for samples.
        instruction: system message of the prompt.
        max_new_tokens: maximum tokens of a rewrite.
        history_messages: number of most recent messages in the prompt.
        history_words: maximum words of each earlier message in the prompt, from its beginning.
        dtype: type of the weights.
        batch_tokens: tokens per batch.
    """

    rewriter: str | None = field(default=None, metadata={"positional": True})
    adapter: str | None = None
    model: str | None = None
    input: Path | None = None
    output: Path | None = None
    n: Positive = 1
    instruction: str | None = None
    max_new_tokens: Positive | None = None
    history_messages: NonNegative | None = None
    history_words: Positive | None = None
    dtype: Dtype | None = None
    batch_tokens: Positive | None = None

    def __post_init__(self) -> None:
        if self.rewriter and self.adapter:
            raise InputError("`--adapter` names the rewriter a second time; remove it.")
        if self.output and not self.input:
            raise InputError("`--output` needs `--input`.")


def rewriter_options(flags: RewriterFlags) -> RewriterSettings:
    """The settings that the rewriter was trained with, overridden by flags; raises InputError without a base model."""
    name = flags.rewriter or flags.adapter
    options = (load_adapter_settings(name) if name else None) or RewriterSettings(adapter=name)
    values = {option: getattr(flags, option) for option in OPTIONS}
    options = replace(options, **{option: value for option, value in values.items() if value is not None})
    if not options.model and name:
        raise InputError(f"{name} contains no rewriter.json; name the base model with `--model`.")
    if not options.model:
        raise InputError("the rewriter is not set; name a run folder or an adapter, or a base model with `--model`.")
    return options


def query_lines(rewriter: "Rewriter", turns: Sequence[Turn], n: int) -> Iterator[str]:
    """Yield a JSON line for each turn, with progress."""
    with Progress("rewrite", len(turns)) as progress:
        for batch in batched(turns, BATCH_SIZE):
            for turn, queries in zip(batch, rewriter.queries(batch, n), strict=True):
                values = {"query": queries[0]} if n == 1 else {"queries": queries}
                yield json.dumps({"id": turn.id, **values}, ensure_ascii=False) + "\n"
            progress.advance(len(batch))


def main(argv: list[str] | None = None) -> None:
    flags = parse_flags(RewriterFlags, __doc__, argv)
    set_up_logging(sys.stderr)  # the queries go to standard output
    options, turns = rewriter_options(flags), read_turns(flags.input) if flags.input else []

    from rewriter.rewriter import Rewriter

    rewriter = Rewriter.from_settings(options)
    if not flags.input:
        converse(rewriter, flags.n)
    elif flags.output:
        write_atomic(flags.output, query_lines(rewriter, turns, flags.n))
    else:
        sys.stdout.writelines(query_lines(rewriter, turns, flags.n))


if __name__ == "__main__":
    run_command(main)
