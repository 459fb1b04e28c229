"""Score passage lists with any reward, without training.

    python -m scoring.utility --model Qwen/Qwen2.5-1.5B-Instruct --input items.jsonl --output judged.jsonl
    python -m scoring.utility --reward udcg --model meta-llama/Llama-3.2-3B-Instruct --input a.json --output b.json
    python -m scoring.utility --reward udcg --model meta-llama/Llama-3.2-3B-Instruct --input b.json --output c.json
                                        # every passage of b.json carries `no_res_prob`: no model is loaded

An item is `{"question", "passages": [{"text", "doc_id"?, "is_relevant"?, "score"?}], "history"?, "answers"?,
"reply"?, "example_id"?}`; a file is JSON lines or one JSON list. Each item comes out with `<reward>[model]` and, for
UDCG, `models_info[model].no_res_prob` on each passage, as the published tool writes it; for GROGU rewards
`models_info[model]` on the item, with the answer and each of its tokens.

`scoring.score_items` does the same in Python.
"""

from core.cli import parse_flags, run_command
from core.progress import set_up_logging
from scoring.flags import UtilityFlags


def main(argv: list[str] | None = None) -> None:
    flags = parse_flags(UtilityFlags, __doc__, argv)
    set_up_logging()
    from scoring.score_file import score_file

    score_file(flags)


if __name__ == "__main__":
    run_command(main)
