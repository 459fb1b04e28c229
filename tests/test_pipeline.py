"""The stages of a run: their names, the stages that a command runs, and the stages that are moved aside."""

import pytest

from core.errors import InputError
from core.records import TurnRecord
from core.stages import Stage
from rewriter.conversations import TurnSet
from tests.conftest import settings_of, write_lines
from train.pipeline import make_stage, run_pipeline, selected_stages, stage_names
from train.run import Run

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


def test_an_unknown_stage_is_an_error(tmp_path):
    run = Run(settings_of("--run.dir", tmp_path), [])
    run.train_turns = TurnSet((), "fingerprint")
    candidates = Stage(tmp_path, "round-1/candidates", {}, {"turns": "fingerprint"}, TurnRecord)
    candidates.write([])
    candidates.finish({"total": 0})
    with pytest.raises(ValueError, match="`round-1/kto` is not a stage"):
        make_stage(run, "round-1/kto")


def test_stages_that_a_redo_does_not_replace_stay_in_the_backup(random_llama, tmp_path, caplog):
    turns = write_lines(tmp_path / "turns.jsonl", [{"id": "a_1", "history": [], "question": "Where is the lake?"}])
    corpus = write_lines(tmp_path / "corpus.jsonl", [{"id": "d", "text": "The lake is in the north."}])
    flags = ["--run.dir", tmp_path / "run", "--data.train", turns, "--data.corpus", corpus]
    flags += ["--rewriter.model", random_llama, "--rewriter.n", "2", "--rewriter.max_new_tokens", "4"]
    flags += ["--rewriter.include", "[question]", "--run.threads", "1"]
    run_pipeline(settings_of(*flags, "--run.until", "rankings"))
    caplog.set_level("INFO", "rewriter")
    run_pipeline(settings_of(*flags, "--run.redo_from", "candidates", "--run.until", "candidates"))
    assert (tmp_path / "run/round-1/candidates/manifest.json").exists()
    assert not (tmp_path / "run/round-1/rankings").exists()
    assert (tmp_path / "run/.before/round-1/rankings/manifest.json").exists()
    assert f"the old stages stay in {tmp_path / 'run/.before'}" in caplog.text
