"""Check a generator before training: does each reward rank documents with the answer above documents without it?

    python -m scoring.validity --config configs/quickstart.yaml --output validity
    python -m scoring.validity --input items.jsonl --model Qwen/Qwen2.5-1.5B-Instruct --output validity

With `--config`, document lists are built from the labelled training turns, or from held-out turns if no training turn
is labelled. Each turn has four lists: one gold passage among retrieved ones, a list of equal length without it, and
one gold passage with 4 random and with 4 retrieved ones. `--input` uses the passages of each item (in the format of
`scoring.utility`, with `is_relevant`). Writes `validity.json`, `validity.md` and `validity.svg`. GROGU rewards score
the generated answer, `key_entropy@logged` and the like the logged reply.

The following command compares how the rewards of a run order the candidates of a turn with their reciprocal ranks:

    python -m scoring.validity --config configs/smollm2.yaml --run runs/smollm2
"""

from core.cli import parse_known_flags, run_command
from core.errors import InputError
from core.progress import set_up_logging
from scoring.flags import ValidityFlags


def main(argv: list[str] | None = None) -> None:
    flags, words = parse_known_flags(ValidityFlags, __doc__, argv)
    if flags.input and words:
        raise InputError(f"`{words[0]}` cannot be used with `--input`; use `--config` to override settings.")
    set_up_logging()
    if flags.run:
        from scoring.pair_order import show_pair_order

        show_pair_order(flags, words)
    else:
        from scoring.validity_report import check_generator

        check_generator(flags, words)


if __name__ == "__main__":
    run_command(main)
