"""Export the result of a run, with a card: a merged model, the preference pairs, or an upload to the Hub.

    python -m train.export runs/quickstart --merged exported/model
    python -m train.export runs/quickstart --pairs exported/pairs
    python -m train.export runs/quickstart --push_to_hub owner/name                       # the adapter
    python -m train.export runs/quickstart --merged exported/model --push_to_hub owner/name

New repositories on the Hub are private; you can make them public there. Pairs contain conversations.
"""

from dataclasses import dataclass, field
from pathlib import Path

from core.cli import parse_flags, run_command
from core.errors import InputError
from core.progress import set_up_logging
from core.schema import Validated


@dataclass(kw_only=True)
class ExportFlags(Validated):
    """Flags of the command.

    Args:
        run: run folder.
        merged: folder for the base model with the adapter merged into it (safetensors).
        pairs: folder for the preference pairs of all rounds, a data set in TRL's format.
        push_to_hub: Hub id to upload to. Uploads the export of `--merged` or `--pairs`, else the adapter.
    """

    run: Path = field(metadata={"positional": True})
    merged: Path | None = None
    pairs: Path | None = None
    push_to_hub: str | None = None

    def __post_init__(self) -> None:
        if self.merged and self.pairs:
            raise InputError("`--merged` and `--pairs` cannot be combined; run the command once for each.")
        if not (self.merged or self.pairs or self.push_to_hub):
            raise InputError("nothing to export: give `--merged DIR`, `--pairs DIR` or `--push_to_hub ID`.")
        for name in ("merged", "pairs"):
            folder = getattr(self, name)
            if folder and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise InputError(f"`--{name}`: {folder} already exists; name a new folder.")


def main(argv: list[str] | None = None) -> None:
    flags = parse_flags(ExportFlags, __doc__, argv)
    set_up_logging()
    from train.export.files import export_run

    export_run(flags)


if __name__ == "__main__":
    run_command(main)
