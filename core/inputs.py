"""Where a run finds its conversations and its collection."""

from pathlib import Path

from core.errors import InputError
from core.settings import Settings


def data_file(settings: Settings, which: str) -> Path:
    """Path of `train`, `test` or `corpus`.

    Raises:
        InputError: the setting is missing, or the file is; says which and what to do.
    """
    if settings.data.format == "tiny_world":
        folder = settings.run_dir / "data"
        path = folder / f"{which}.jsonl"
        if not path.exists():
            raise InputError(f"{path} is missing; make it with `python -m train.tiny_world --out {folder}`.")
        return path
    named = getattr(settings.data, which)
    if not named:
        raise InputError(f"`data.{which}` is not set; name the file with `--data.{which} FILE`.")
    path = Path(named)
    if not path.is_file():
        raise InputError(f"`data.{which}`: no file at {path}.")
    return path
