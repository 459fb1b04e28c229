"""Score passage lists with any reward, without training.

    python -m scoring.utility --model Qwen/Qwen2.5-1.5B-Instruct --input items.jsonl --output judged.jsonl
    python -m scoring.utility --reward udcg --model meta-llama/Llama-3.2-3B-Instruct --input a.json --output b.json
    python -m scoring.utility --reward udcg --model meta-llama/Llama-3.2-3B-Instruct --input b.json --output c.json
                                        # every passage of b.json has `no_res_prob`, so no model is loaded

An item is `{"question", "passages": [{"text", "doc_id"?, "is_relevant"?, "score"?}], "history"?, "answers"?,
"reply"?, "example_id"?}`; a file is JSON lines or one JSON list. The output adds `<reward>[model]` to each item. UDCG
also adds `models_info[model].no_res_prob` to each passage, as the published tool does; GROGU rewards add
`models_info[model]` to the item, with the answer and each of its tokens.

`scoring.score_items` does the same in Python.
"""

from dataclasses import dataclass, field
from pathlib import Path

from core.cli import parse_flags, run_command
from core.progress import set_up_logging
from core.schema import Positive, Seed
from core.scoring_settings import RewardSettings
from core.settings import ModelSettings


@dataclass(kw_only=True)
class UtilityFlags(RewardSettings, ModelSettings):
    """Flags of the command.

    Args:
        model: folder, Hub id or `.gguf` file of the generator; also the key of its results in the output.
        adapter: PEFT adapter of the generator.
        batch_tokens: tokens per batch.
        max_new_tokens: maximum tokens of an answer.
        device: cpu, cuda, cuda:1 ...; by default cuda if available, else cpu.
        seed: seed of the answers that Delta-SePer samples.
        input: file of items: JSON lines or a JSON list.
        output: file to write: a JSON list if its name ends in `.json`, else JSON lines.
        resume: continue an interrupted run.
    """

    model: str = field()  # required here, although it has a default in the settings
    max_new_tokens: Positive = 64
    device: str | None = None
    seed: Seed = 0
    input: Path
    output: Path
    resume: bool = False


def main(argv: list[str] | None = None) -> None:
    flags = parse_flags(UtilityFlags, __doc__, argv)
    set_up_logging()
    from scoring.score_file import score_file

    score_file(flags)


if __name__ == "__main__":
    run_command(main)
