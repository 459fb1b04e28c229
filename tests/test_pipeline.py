"""The stages of a run: their names, and the stages that a command runs."""

import pytest

from core.errors import InputError
from tests.conftest import settings_of
from train.pipeline import selected_stages, stage_names

FIRST = ["round-1/candidates", "round-1/rankings", "round-1/scores", "round-1/pairs", "round-1/sft", "round-1/dpo"]
SECOND = ["round-2/candidates", "round-2/rankings", "round-2/scores", "round-2/pairs", "round-2/dpo"]


def test_only_the_first_round_has_an_sft_stage():
    assert stage_names(1) == [*FIRST, "evaluation"]
    assert stage_names(2) == [*FIRST, *SECOND, "evaluation"]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], [*FIRST, *SECOND, "evaluation"]),
        (["--run.until", "round-2/pairs"], [*FIRST, *SECOND[:4]]),
        (["--run.until", "pairs"], FIRST[:4]),
        (["--run.until", "dpo", "--run.redo_from", "scores"], FIRST),
        (["--run.only", "round-2/dpo"], ["round-2/dpo"]),
        (["--run.only", "evaluation"], ["evaluation"]),
    ],
)
def test_the_stages_that_a_command_runs(flags, expected):
    assert selected_stages(settings_of("--train.rounds", "2", *flags)) == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            ["--run.until", "round-3/pairs"],
            "`run.until`: there is no stage `round-3/pairs`; did you mean `round-2/pairs`",
        ),
        (["--run.redo_from", "score"], "`run.redo_from`: there is no stage `score`"),
        (["--run.only", "round-2/sft"], "`run.only`: there is no stage `round-2/sft`"),
        (["--run.only", "dpo", "--run.until", "dpo"], "`run.only` runs a single stage; remove"),
        (
            ["--run.redo_from", "evaluation", "--run.until", "scores"],
            r"`run.redo_from` \(evaluation\) comes after `run.until` \(round-1/scores\)",
        ),
    ],
)
def test_invalid_stages_are_named(flags, expected):
    with pytest.raises(InputError, match=expected):
        selected_stages(settings_of("--train.rounds", "2", *flags))
