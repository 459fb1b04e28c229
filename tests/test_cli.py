"""Flags of the commands: accepted values, errors and help."""

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from core.cli import parse_flags, parse_known_flags, run_command
from core.errors import InputError
from core.schema import Positive, Validated
from rewriter.__main__ import main as rewrite
from scoring.utility import main as utility
from tests.conftest import ROOT

COMMANDS = {  # module -> a flag of it
    "train.dpo": "--pairs.drop_fraction", "train.compare": "--rewards", "train.aggregate_seeds": "--measures",
    "rewriter.__main__": "--history_words", "rewriter.datasets.__main__": "--passages",
    "retrieval.evaluate": "--by_conversation", "scoring.utility": "--irrelevant_weight",
    "scoring.validity": "--entailment",
}  # fmt: skip


@dataclass(kw_only=True)
class Flags(Validated):
    """Flags of a test.

    Args:
        files: some files.
        size: 100% of it.
        names: which.
        kind: a choice.
        quick: a switch.
    """

    files: list[Path] = field(metadata={"positional": True})
    size: Positive | None = None
    names: list[Literal["one", "two"]] = field(default_factory=lambda: ["one"])
    kind: Literal["a", "b"] = "a"
    quick: bool = False

    def __post_init__(self) -> None:
        if self.quick and self.size:
            raise InputError("`--quick` takes no `--size`.")


def test_flags_have_the_types_of_their_fields():
    assert parse_flags(Flags, "", ["x"]) == Flags(files=[Path("x")])
    words = ["x", "y.1", "--size", "3", "--names", "two", "one", "--kind=b"]
    assert parse_flags(Flags, "", words) == Flags(
        files=[Path("x"), Path("y.1")], size=3, names=["two", "one"], kind="b"
    )
    assert parse_flags(Flags, "", ["x", "--quick"]).quick
    assert parse_known_flags(Flags, "", ["x", "--run.dir", "y"]) == (Flags(files=[Path("x")]), ["--run.dir", "y"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "the following arguments are required: FILES; `--help` lists the flags."),
        (["x", "--sise", "3"], "unknown flag `--sise`; did you mean `--size`?"),
        (["x", "--siz", "3"], "unknown flag `--siz`; did you mean `--size`?"),
        (["x", "--size"], "argument --size: expected one argument; `--help` lists the flags."),
        (["x", "--size", "0"], "`--size` must be a whole number >= 1, or null, got 0."),
        (["x", "--names", "one", "tow"], "`--names[1]` must be one of one, two, got 'tow'; did you mean `two`?"),
        (["x", "--kind", "c"], "`--kind` must be one of a, b, got 'c'."),
        (["x", "--quick", "--size", "3"], "`--quick` takes no `--size`."),
    ],
)
def test_a_mistake_in_a_flag_is_named(words, expected):
    with pytest.raises(InputError) as error:
        parse_flags(Flags, "", words)
    assert str(error.value) == expected


def test_commands_need_a_model():
    with pytest.raises(InputError, match="^the rewriter is not set; name a run folder or an adapter, or a base model"):
        rewrite([])
    with pytest.raises(InputError, match="^`--model` is not set; it must be a string.$"):
        utility(["--input", "x", "--output", "y"])


def test_a_mistyped_flag_is_named_before_the_flag_that_is_missing():
    with pytest.raises(InputError, match="^unknown flag `--modle`; did you mean `--model`?"):
        utility(["--modle", "m", "--input", "x", "--output", "y"])


def test_help_has_types_and_defaults(capsys):
    with pytest.raises(SystemExit):
        parse_flags(Flags, "What it does.", ["--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "What it does." in said and "--size SIZE 100% of it. (a whole number >= 1, or null)" in said
    assert "--kind KIND a choice. (one of a, b; default a)" in said
    assert "FILES some files. (a list, each item a path; required)" in said


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (InputError("`x` is bad."), 2, "error: `x` is bad.\n"),
        (KeyboardInterrupt(), 130, "stopped.\n"),
        (KeyboardInterrupt(15), 143, "stopped.\n"),
        (OSError(28, "No space left on device", "f"), 2, "error: f: No space left on device; free some space and"),
    ],
)
def test_errors_become_one_line_and_a_status(capsys, error, status, said):
    def main():
        raise error

    with pytest.raises(SystemExit) as end:
        run_command(main)
    assert end.value.code == status and capsys.readouterr().err.startswith(said)


def test_help_of_every_command_is_quick_and_loads_no_torch():
    code = f"""
import importlib, io, resource, sys
from contextlib import redirect_stdout
for name, flag in {COMMANDS}.items():
    sys.argv = [name, "--help"]
    with redirect_stdout(io.StringIO()) as out:
        try:
            importlib.import_module(name).main()
        except SystemExit as end:
            assert not end.code
    assert flag in out.getvalue(), name
    heavy = {{"torch", "transformers", "trl", "peft", "datasets", "faiss", "scipy"}} & set(sys.modules)
    assert not heavy, (name, heavy)
print(resource.getrusage(resource.RUSAGE_SELF).ru_utime)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 2  # CPU seconds of all commands; an idle machine needs half
