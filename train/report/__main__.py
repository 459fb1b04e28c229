"""Write the report of one run, or of several runs side by side, as one HTML file that needs no network.

    python -m train.report runs/quickstart
    python -m train.report runs/quickstart-1 runs/quickstart-2 --output seeds.html
    python -m train.report runs/quickstart --examples 0      # no text of conversations or documents

`train/dpo.py` writes `<run>/report.html` at its end. The command needs the data files in the settings of the run.
"""

from dataclasses import dataclass, field
from pathlib import Path

from core.cli import parse_flags, run_command
from core.progress import set_up_logging
from core.schema import NonNegative, Validated


@dataclass(kw_only=True)
class ReportFlags(Validated):
    """Flags of the command.

    Args:
        runs: run folders.
        output: the HTML file; by default `report.html` in the run folder, or in the current folder for several runs.
        examples: number of held-out turns to show; 0 leaves out all text of conversations and documents. By default
            the run's `report.examples`.
    """

    runs: list[Path] = field(metadata={"positional": True})
    output: Path | None = None
    examples: NonNegative | None = None


def main(argv: list[str] | None = None) -> None:
    flags = parse_flags(ReportFlags, __doc__, argv)
    set_up_logging()
    from train.report.page import report_folders

    output = flags.output or (flags.runs[0] if len(flags.runs) == 1 else Path()) / "report.html"
    report_folders(output, flags.runs, flags.examples)


if __name__ == "__main__":
    run_command(main)
