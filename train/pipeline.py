"""The pipeline: its rounds and stages, in order.

    round-1/candidates  sample rewrites of the training turns       rewriter/candidates.py
    round-1/rankings    retrieve documents for each rewrite         retrieval/rankings.py
    round-1/scores      score them with the generator               scoring/scores.py
    round-1/pairs       pair the best and worst rewrite of a turn   train/pairs.py
    round-1/sft         train on the best rewrites                  train/sft_stage.py
    round-1/dpo         train on the pairs                          train/dpo_stage.py
    round-2/...         the same without sft, with rewrites sampled from the previous round's rewriter
    evaluation          compare all rewriters on held-out turns     train/evaluation.py

To add a stage, see docs/extending.md.

Stages of other packages receive the inputs that they need. Stages of `train/` need most settings and receive the run.
"""

import errno
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from core.adapters import check_adapter
from core.artifacts import read_json, write_json
from core.batching import use_cores
from core.data_sources import DataSource
from core.distributed import lock_folder, process, wait_for_all
from core.errors import InputError, nearest
from core.progress import log, peak_memory_mb
from core.records import Pair, TurnRecord
from core.settings import Settings
from core.stages import Stage, load_stage
from retrieval.rankings import make_rankings
from rewriter.candidates import make_candidates
from rewriter.rewriter import server_backend
from scoring.scorer import check_scoring
from scoring.scores import make_scores
from train.dpo_stage import train_dpo
from train.evaluation import check_test_turns, make_evaluation
from train.pairs import make_pairs
from train.policy import check_lora
from train.report.page import write_report
from train.run import EVALUATION, RUN_FILE, Run, prepare_data, split_stage, stage_names
from train.sft_stage import train_sft
from train.tracking import RunTracker, check_trackers
from train.trainer_config import trainer_config

BACKUP = ".before"
FULL = 1 << 16  # a disk with less free space is full, in bytes


def make_stage(run: Run, stage: str) -> Stage:
    """Run a stage, one of `stage_names`. The stages before it must be complete."""
    settings = run.settings
    if stage == EVALUATION:
        return make_evaluation(run)
    number, name = split_stage(stage)

    def load(stage_name: str, record_type: type, of_round: int = number) -> Stage:
        return load_stage(run.path, f"round-{of_round}/{stage_name}", record_type)

    if name == "candidates":
        options = settings.rewriter
        model = None if options.url else run.base
        if number > 1:  # the trained rewriter does not need examples
            model, options = run.trained(f"round-{number - 1}/dpo"), replace(options, examples=[])
        return make_candidates(settings.run, stage, run.train_turns, model, options)
    candidates = load("candidates", TurnRecord)
    candidates.expect(inputs={"turns": run.train_turns.fingerprint})
    if name == "rankings":
        return make_rankings(settings.run, stage, candidates, settings.retrieval, run.collections)
    if name == "scores":
        return make_scores(
            settings.run, stage, load("rankings", TurnRecord), run.train_turns, run.collections, settings.scoring,
            settings.generator, run.generator,
        )  # fmt: skip
    if name == "pairs":
        return make_pairs(run, stage, load("scores", TurnRecord))
    if name == "sft":
        return train_sft(run, stage, load("pairs", Pair))
    if name != "dpo":
        raise ValueError(f"`{stage}` is not a stage of a run")
    first = 1 if settings.train.learn_from == "all" else number
    pairs = {f"round-{i}/pairs": load("pairs", Pair, i) for i in range(first, number + 1)}
    from_last = number > 1 and settings.train.start_from == "last"
    start = f"round-{number - 1}/dpo" if from_last else "round-1/sft"
    return train_dpo(run, stage, pairs, load_stage(run.path, start))


@contextmanager
def disk_errors(run_dir: Path, stage: str) -> Iterator[None]:
    """Turn the errors of torch and safetensors about a full disk into an OSError.

    Raises:
        OSError: the disk or the user's quota is full, or a file is larger than allowed.
    """
    try:
        yield
    except (InputError, OSError):
        raise
    except Exception as error:
        codes = [code for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) if os.strerror(code) in str(error)]
        if shutil.disk_usage(run_dir).free < FULL:
            codes.append(errno.ENOSPC)
        if codes:
            raise OSError(codes[0], os.strerror(codes[0]), str(run_dir / stage)) from error
        raise


def check_inputs(run: Run, stages: Sequence[str]) -> None:
    """Check data, collections, labels, models and trainer settings of the stages before the run computes anything.

    Raises:
        InputError: an input is missing or invalid.
    """
    settings, kinds = run.settings, {split_stage(stage)[1] for stage in stages}
    if kinds != {EVALUATION}:
        _ = run.train_turns  # reads and checks the file
    if EVALUATION in kinds:
        _ = run.test_turns
    if settings.rewriter.url:
        server_backend(settings.rewriter)  # raises if its optional package is missing
    check_trackers(settings.train.report_to)
    for section in ("sft", "dpo"):
        trainer_config(settings, section, run.path)
    if kinds != {"candidates"}:
        _ = run.collections  # raises on a bad passage
    if "scores" in kinds:
        key = settings.generator.model_key
        check_scoring(run.train_turns.turns, settings.scoring, run.generator.name, key)
    for options in (settings.rewriter, settings.generator):
        if options.model and options.adapter:
            check_adapter(options.model, options.adapter)
    if kinds & {"sft", "dpo"}:
        check_lora(run.base, settings.lora)
    if EVALUATION in kinds:
        check_test_turns(run.test_turns, run.collections, settings)


def selected_stages(settings: Settings) -> list[str]:
    """The stages that `run.until` or `run.only` select; by default all.

    Raises:
        InputError: a name is not a stage, `run.only` is set with `run.until` or `run.redo_from`, or `run.redo_from`
            comes after `run.until`.
    """
    names, redone = stage_names(settings.train.rounds), redone_stages(settings)
    until = stage_named(names, "until", settings.run.until)
    only = stage_named(names, "only", settings.run.only)
    if only and (until or redone):
        raise InputError("`run.only` runs a single stage; remove `run.until` and `run.redo_from`.")
    if redone and until and until not in redone:
        raise InputError(f"`run.redo_from` ({redone[0]}) comes after `run.until` ({until}); nothing would be redone.")
    if only:
        return [only]
    return names[: names.index(until) + 1] if until else names


def redone_stages(settings: Settings) -> list[str]:
    """The stages to run again: `run.redo_from` and all later ones; empty if it is not set."""
    names = stage_names(settings.train.rounds)
    redo_from = stage_named(names, "redo_from", settings.run.redo_from)
    return names[names.index(redo_from) :] if redo_from else []


def stage_named(names: Sequence[str], key: str, value: str | None) -> str | None:
    """The full name of a stage; a name without a round means the first round."""
    if value is None or value in names:
        return value
    if f"round-1/{value}" in names:
        return f"round-1/{value}"
    raise InputError(f"`run.{key}`: there is no stage `{value}`; {nearest(value, list(names))}")


def set_aside(run_dir: Path, stages: Sequence[str]) -> None:
    """Move complete stages into the backup folder (`run.redo_from`), and delete incomplete ones."""
    if process()[0] == 0:
        backup = run_dir / BACKUP
        for name in stages:
            folder = run_dir / name
            if (folder / "manifest.json").exists():
                shutil.rmtree(backup / name, ignore_errors=True)
                (backup / name).parent.mkdir(parents=True, exist_ok=True)
                folder.rename(backup / name)
            shutil.rmtree(folder, ignore_errors=True)
        log.info("redo: `%s` and later stages were moved to %s and stay there until the run has finished",
                 stages[0], backup)  # fmt: skip
    wait_for_all()


def run_pipeline(settings: Settings, sources: Sequence[DataSource] | None = None) -> None:
    """Run all stages, or those that `run.until` or `run.only` select.

    `sources` are the data sets; by default those in the settings.
    """
    start, stages, run_dir = time.monotonic(), selected_stages(settings), settings.run.path
    use_cores(settings.run.threads)
    lock_folder(run_dir)
    command = shlex.join(sys.argv)
    run_file = run_dir / RUN_FILE
    if process()[0] == 0 and not run_file.exists():
        write_json(run_file, {"command": command, "settings": asdict(settings)})
    log.info("settings: %s", run_file)
    run = Run(settings, prepare_data(settings) if sources is None else sources, command)
    check_inputs(run, stages)
    if redone := redone_stages(settings):
        set_aside(run_dir, redone)
    tracker = run.tracker = RunTracker(run_dir, settings.train.report_to)
    for name in stages:
        with disk_errors(run_dir, name):
            manifest = make_stage(run, name).manifest
        tracker.log(name, manifest["counts"] | {"seconds": manifest["seconds"]})
    if stages[-1] == EVALUATION:
        tracker.log(EVALUATION, read_json(run_dir / EVALUATION / "metrics.json", "systems")["systems"])
    tracker.finish()
    if process()[0] == 0:
        # Only now, because a stage may refuse changed settings.
        write_json(run_file, {"command": command, "settings": asdict(settings)})
        names = stage_names(settings.train.rounds)
        last_dpo = names[-2]
        if stages == names:
            shutil.rmtree(run_dir / BACKUP, ignore_errors=True)
        elif (run_dir / BACKUP).exists():
            log.info("redo: the old stages stay in %s until the whole run has finished", run_dir / BACKUP)
        if (run_dir / last_dpo / "manifest.json").exists():
            copy_folder(run_dir / last_dpo / "adapter", run_dir / "adapter")
            log.info("to use it: %s", shlex.join(["python", "-m", "rewriter", str(run_dir)]))
        write_report(run_dir / "report.html", [run], settings.report.examples)
    log.info("total: %.0f s, peak memory %.0f MB -> %s", time.monotonic() - start, peak_memory_mb(), run_dir)


def copy_folder(source: Path, target: Path) -> None:
    """Replace a folder by a copy of another. A crash leaves no partial copy in `target`."""
    temporary = target.with_name(f".{target.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(source, temporary)
    shutil.rmtree(target, ignore_errors=True)
    temporary.rename(target)
