"""`train.report_to`: logging to TensorBoard and Weights & Biases."""

import pytest

from core.errors import InputError
from train.tracking import RunTracker, check_trackers, flatten

KEY = "0123456789abcdef" * 2 + "01234567"  # in the format that W&B requires


def test_nested_numbers_are_flattened():
    values = {"total": 3, "dropped": {"equal scores": 1, "note": "x"}, "ok": True, "none": None, "loss": 0.5}
    assert list(flatten(values)) == [("total", 3), ("dropped/equal scores", 1), ("loss", 0.5)]


def test_a_tracker_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr("train.tracking.find_spec", lambda name: None)
    with pytest.raises(InputError, match="`train.report_to: wandb` needs the package wandb; .* pip install wandb"):
        check_trackers(["wandb"])


def test_weights_and_biases(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    (tmp_path / "run").mkdir()
    tracker = RunTracker(tmp_path / "run", ["wandb"])
    tracker.log("round-1/sft", {"loss": 1.5}, 10)
    tracker.log("round-2/dpo", {"loss": 0.5}, 5)  # W&B rejects a decreasing step
    run = tracker.trackers[0].tracker
    assert run.name == "run" and dict(run.summary)["round-1/sft/loss"] == 1.5
    assert dict(run.summary)["round-2/dpo/loss"] == 0.5 and dict(run.summary)["round-2/dpo/step"] == 5
    tracker.finish()
    assert list((tmp_path / "run/wandb").glob("offline-run-*"))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


@pytest.mark.slow
def test_a_run_in_tensorboard(finished_run):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(finished_run / "tensorboard"))
    events.Reload()
    names = set(events.Tags()["scalars"])
    assert {"round-1/sft/loss", "round-2/dpo/rewards/margins", "round-1/pairs/mean_gap", "round-1/candidates/total",
            "evaluation/dpo/MRR@10"} <= names  # fmt: skip
    assert [event.value for event in events.Scalars("round-1/candidates/total")] == [24.0]
