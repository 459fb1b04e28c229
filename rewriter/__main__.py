"""Use a rewriter: a file of turns, or a conversation at a prompt.

    python -m rewriter --model configs/tiny-model --adapter runs/quickstart/dpo/adapter --input turns.jsonl
    python -m rewriter --model configs/tiny-model --adapter runs/quickstart/dpo/adapter

The first prints a line `{"id", "query"}` for each turn.
"""

import argparse
import json
import sys
from pathlib import Path

from core.records import Turn
from core.runtime import Progress, run_command
from core.settings import RewriterSettings
from rewriter.conversations import read_turns

BATCH = 32


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="rewriter", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="folder, Hub id or .gguf file of the base model")
    parser.add_argument("--adapter", help="PEFT adapter, such as <run>/dpo/adapter")
    parser.add_argument("--input", type=Path, help="turns (JSONL); without it, questions are asked for")
    parser.add_argument("--max_new_tokens", type=int, default=48, help="longest rewrite (default 48)")
    parser.add_argument(
        "--instruction", default="", help="system message, where the adapter was trained with `rewriter.instruction`"
    )
    for name in ("history_messages", "history_words"):
        parser.add_argument(f"--{name}", type=int, help=f"where the adapter was trained with `rewriter.{name}`")
    dtypes = ["float32", "bfloat16", "float16"]
    parser.add_argument("--dtype", default=dtypes[0], choices=dtypes, help="of the weights (default float32)")
    arguments = parser.parse_args()
    if arguments.max_new_tokens < 1:
        parser.error(f"--max_new_tokens must be at least 1, got {arguments.max_new_tokens}")
    turns = read_turns(arguments.input) if arguments.input else []

    from core.language_model import check_room, load_language_model
    from rewriter.prompts import RewritePrompt
    from rewriter.sampling import greedy_rewrites

    options = RewriterSettings(
        instruction=arguments.instruction,
        max_new_tokens=arguments.max_new_tokens,
        history_messages=arguments.history_messages,
        history_words=arguments.history_words,
    )
    prompt = RewritePrompt.of(options)
    lm = load_language_model(arguments.model, arguments.adapter, arguments.dtype)
    check_room(lm, arguments.max_new_tokens, "--max_new_tokens")
    if arguments.input:
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
