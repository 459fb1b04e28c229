"""Use a rewriter: a file of turns, or a conversation at a prompt.

    python -m rewriter --model configs/tiny-model --adapter runs/quickstart/dpo/adapter --input turns.jsonl
    python -m rewriter --model configs/tiny-model --adapter runs/quickstart/dpo/adapter

The first prints a line `{"id", "query"}` for each turn.
"""

import json
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path

from core.cli import parse_flags, run_command
from core.records import Turn
from core.runtime import Progress
from core.settings import InferenceSettings, RewriterSettings
from rewriter.conversations import read_turns

BATCH = 32


@dataclass(kw_only=True)
class RewriteFlags(InferenceSettings):
    """Flags of the command; the prompt and its limits are those of the training.

    Args:
        adapter: PEFT adapter, such as <run>/dpo/adapter.
        input: turns (JSONL); without it, questions are asked for.
    """

    model: str = field()  # without the default that it has in the settings
    input: Path | None = None


def main(argv: list[str] | None = None) -> None:
    flags = parse_flags(RewriteFlags, __doc__, argv)
    turns = read_turns(flags.input) if flags.input else []

    from core.language_model import check_room, load_language_model
    from rewriter.prompts import RewritePrompt
    from rewriter.sampling import greedy_rewrites

    options = RewriterSettings(**{each.name: getattr(flags, each.name) for each in fields(InferenceSettings)})
    prompt = RewritePrompt.of(options)
    lm = load_language_model(flags.model, flags.adapter, flags.dtype)
    check_room(lm, flags.max_new_tokens, "--max_new_tokens")
    if flags.input:
        with Progress("rewrite", len(turns)) as progress:
            for start in range(0, len(turns), BATCH):
                batch = turns[start : start + BATCH]
                queries = greedy_rewrites(lm, batch, options, prompt)
                for turn, query in zip(batch, queries, strict=True):
                    print(json.dumps({"id": turn.id, "query": query}, ensure_ascii=False))
                progress.advance(len(batch))
        return
    history: list[dict[str, str]] = []
    sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    print("Ask; then give the assistant's answer, for the next question to refer to. An empty question ends.")
    try:
        while question := input("question: ").strip():
            turn = Turn("prompt", tuple(history), question)
            (query,) = greedy_rewrites(lm, [turn], options, prompt)
            print(f"query:    {query}")
            history += [
                {"role": "user", "content": question},
                {"role": "assistant", "content": input("answer:   ").strip()},
            ]
    except EOFError:
        print()


if __name__ == "__main__":
    run_command(main)
