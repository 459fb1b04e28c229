"""Use a rewriter: a file of turns, or a conversation at a prompt.

    python -m rewriter --adapter runs/quickstart/adapter --input turns.jsonl
    python -m rewriter --adapter runs/quickstart/adapter

The first prints one line for each turn: `{"id", "query"}`, what to search. Base model, prompt and limits are in
the `rewriter.json` that training saves beside the adapter; flags override them.
"""

import json
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path

from core.cli import parse_flags, run_command
from core.errors import InputError
from core.progress import Progress
from core.schema import Dtype, NonNegative, Positive, Validated
from core.settings import RewriterSettings
from rewriter.adapter_settings import load_adapter_settings
from rewriter.conversations import read_turns

BATCH_SIZE = 32  # turns that are rewritten together


@dataclass(kw_only=True)
class RewriterFlags(Validated):
    """Flags of the command.

    Args:
        adapter: PEFT adapter, such as `<run>/adapter`; the base model alone when not given.
        model: base model: folder, Hub id or `.gguf` file.
        input: turns (JSONL); questions are asked for when not given.
        instruction: system message of the prompt.
        max_new_tokens: longest rewrite.
        history_messages: number of earlier messages in the prompt, the last ones.
        history_words: words of each earlier message in the prompt, the first ones.
        dtype: type of the weights.
        batch_tokens: tokens per batch.
    """

    adapter: str | None = None
    model: str | None = None
    input: Path | None = None
    instruction: str | None = None
    max_new_tokens: Positive | None = None
    history_messages: NonNegative | None = None
    history_words: Positive | None = None
    dtype: Dtype | None = None
    batch_tokens: Positive | None = None


def rewriter_options(flags: RewriterFlags) -> RewriterSettings:
    """The settings that the adapter was trained with, overridden by flags.

    Raises:
        InputError: no base model is known.
    """
    options = (load_adapter_settings(Path(flags.adapter)) if flags.adapter else None) or RewriterSettings()
    values = {each.name: getattr(flags, each.name) for each in fields(flags) if each.name != "input"}
    options = replace(options, **{name: value for name, value in values.items() if value is not None})
    if not options.model:
        raise InputError(f"`--model` is not set, and there is no rewriter.json in {flags.adapter or '`--adapter`'}.")
    return options


def main(argv: list[str] | None = None) -> None:
    flags = parse_flags(RewriterFlags, __doc__, argv)
    options, turns = rewriter_options(flags), read_turns(flags.input) if flags.input else []

    from rewriter.rewriter import Rewriter

    rewriter = Rewriter.from_settings(options)
    if flags.input:
        with Progress("rewrite", len(turns)) as progress:
            for start in range(0, len(turns), BATCH_SIZE):
                batch = turns[start : start + BATCH_SIZE]
                for turn, query in zip(batch, rewriter.queries(batch), strict=True):
                    print(json.dumps({"id": turn.id, "query": query}, ensure_ascii=False))
                progress.advance(len(batch))
        return
    history: list[dict[str, str]] = []
    sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    print("Ask; then give the assistant's answer, for the next question to refer to. An empty question ends.")
    try:
        while question := input("question: ").strip():
            print(f"query:    {rewriter.rewrite(history, question)}")
            history += [
                {"role": "user", "content": question},
                {"role": "assistant", "content": input("answer:   ").strip()},
            ]
    except EOFError:
        print()


if __name__ == "__main__":
    run_command(main)
