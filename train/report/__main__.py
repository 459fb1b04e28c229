"""Write the report of a run, or of several runs side by side: one HTML file that needs no network.

    python -m train.report runs/quickstart
    python -m train.report runs/quickstart-1 runs/quickstart-2 --output seeds.html
    python -m train.report runs/quickstart --examples 0      # no text of conversations or documents

`train/dpo.py` writes `<run>/report.html` when it ends. The data files of the run must still be where its settings say.
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
        output: the HTML file; by default `report.html` in the run folder, or here for several runs.
        examples: held-out turns to show; 0 leaves every text of conversations and documents out. As the run's
            `report.examples` when not given.
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
