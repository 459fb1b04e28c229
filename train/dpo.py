"""The whole run, from conversations to a better rewriter; and its STAGE dpo (TRL's DPOTrainer on a LoRA adapter).

    accelerate launch train/dpo.py --config configs/quickstart.yaml
    accelerate launch train/dpo.py --config configs/quickstart.yaml --run.until pairs
    accelerate launch train/dpo.py --config configs/quickstart.yaml --run.redo_from scores --scoring.reward entropy

Every stage that the run folder does not hold yet is made, in order: candidates, rankings, scores, pairs, sft, dpo,
evaluation. Stopped at any moment, the same command goes on.
"""

import sys
from pathlib import Path

if not __package__:  # as a script, train/ is first on the path and not the root
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import json
import shlex
import shutil
import time
from dataclasses import replace

from core.artifacts import Stage, completed, hold
from core.cli import read_settings, run_command
from core.data_paths import check_files, corpus_source, same_data, set_names
from core.runtime import log, peak_memory_mb, process, set_up_logging, use_cores, wait_for_all
from core.settings import STAGES, Settings, as_plain, rewriter_model
from retrieval.collection import collections_of
from retrieval.rankings import make_rankings
from rewriter.candidates import make_candidates
from scoring.pairs import make_pairs
from scoring.scores import check_scoring, generator_model, make_scores
from train.evaluation import check_test, evaluate
from train.pool import make_pool

NAME, SECOND_ROUND, ASIDE = "dpo", "on_policy", ".before"


def pairs_for_dpo(settings: Settings) -> dict[str, Stage]:
    """The pairs that DPO learns from: those that SFT learned from and, with `pairs.on_policy`, the second round's."""
    folders = {"pairs": settings.run_dir}
    if settings.pairs.on_policy:
        folders[SECOND_ROUND] = settings.run_dir / SECOND_ROUND
    return {name: completed(folder / "pairs") for name, folder in folders.items()}


def dpo_stage(settings: Settings) -> Stage:
    """The stage's folder with what decides its content."""
    decided = {"dpo": settings.dpo, "dtype": settings.rewriter.dtype, "seed": settings.run.seed}
    inputs = {name: pairs.identity() for name, pairs in pairs_for_dpo(settings).items()}
    inputs["sft"] = completed(settings.run_dir / "sft").identity()
    return Stage(settings.run_dir / NAME, decided, inputs, process()[0])


def make_second_round(settings: Settings) -> None:
    """With `pairs.on_policy`: candidates, rankings, scores and pairs once more, sampled from the SFT rewriter.

    The SFT rewriter seldom says what the first pairs reject: from these alone, DPO learns to avoid what is gone
    already. Its own samples show what is still wrong. They live in `<run>/on_policy`.
    """
    log.info("second round: candidates from the SFT rewriter")
    model, adapter = generator_model(settings)
    second = replace(
        settings,
        run=replace(settings.run, dir=str(settings.run_dir / SECOND_ROUND), redo_from=None, until=None),
        data=same_data(settings),
        rewriter=replace(settings.rewriter, adapter=str(settings.run_dir / "sft" / "adapter"), examples=[]),
        generator=replace(settings.generator, model=model, adapter=adapter),
    )
    for make in (make_candidates, make_rankings, make_scores, make_pairs):
        make(second)


def train_dpo(settings: Settings) -> Stage:
    """Bring the stage to its end, from its last checkpoint if there is one.

    Raises:
        InputError: a check fails: the reference is no copy of the SFT adapter, or the reward margin is not 0 at step
        0.
    """
    stage = dpo_stage(settings)
    if stage.complete:
        log.info("dpo: complete, nothing to do (%s)", stage.folder)
        return stage

    hold(settings.run_dir, process()[0])
    from trl import DPOTrainer

    from train.options import trainer_config
    from train.policy import check_reference, warmed_policy
    from train.preference_data import check_batch, checked_rows, data_set_on_disk, preference_rows
    from train.trainers import finish_training, grouped, last_checkpoint, show_steps, starts_level, stop_ids_of

    # ------------------------------------------------------------------ pairs
    model, tokenizer = warmed_policy(settings)
    config = trainer_config(NAME, settings, stage.folder / "checkpoints")
    rows = [row for pairs in pairs_for_dpo(settings).values() for row in preference_rows(pairs, tokenizer)]
    rows = checked_rows(rows, tokenizer, stop_ids_of(model, tokenizer), config.max_length, NAME)

    # ------------------------------------------------------------------ policy and reference
    # A PeftModel without `peft_config` makes TRL keep a frozen copy of the adapter as the reference.
    data = data_set_on_disk(rows, stage.folder / "checkpoints" / "rows")
    trainer = grouped(DPOTrainer, rows)(model=model, args=config, train_dataset=data, processing_class=tokenizer)
    check_reference(trainer.accelerator.unwrap_model(trainer.model))
    check_batch(next(iter(trainer.get_train_dataloader())), NAME)

    # ------------------------------------------------------------------ training
    checkpoint = last_checkpoint(stage.folder / "checkpoints")
    if checkpoint is None:
        trainer.add_callback(starts_level(config))
    show_steps(trainer, NAME)
    trainer.train(resume_from_checkpoint=checkpoint)
    finish_training(trainer, stage, len(rows))
    wait_for_all()
    return stage


def prepare(settings: Settings) -> None:
    """What must hold before anything is computed or put aside: the data are there, and what later stages need too."""
    from train.options import trainer_config

    rewriter_model(settings)
    if settings.data.format == "tiny_world" and process()[0] == 0:
        from train.tiny_world import make_quickstart_data

        make_quickstart_data(settings.run_dir / "data", settings.data.world_seed)
    wait_for_all()
    make_pool(settings)
    last = settings.run.until or STAGES[-1]
    for split in ("train", *([settings.data.evaluate_on] if last == "evaluation" else [])):
        check_files(settings, split)
    for name in set_names(settings):
        corpus_source(settings, name)
    for section in ("sft", "dpo"):
        trainer_config(section, settings, settings.run_dir / section / "checkpoints")
    if STAGES.index(last) >= STAGES.index("rankings"):
        collections_of(settings)  # a bad passage is named before anything is sampled
    if STAGES.index(last) >= STAGES.index("scores"):
        check_scoring(settings)
    if STAGES.index(last) >= STAGES.index("sft"):
        from train.policy import check_lora

        check_lora(settings)
    if last == "evaluation":
        check_test(settings)


def put_aside(settings: Settings, name: str) -> None:
    """Put a stage and all later ones aside (`run.redo_from`) until the run has ended well."""
    if process()[0] == 0:
        removed = STAGES[STAGES.index(name) :]
        aside = settings.run_dir / ASIDE
        for stage in (*removed, SECOND_ROUND) if "sft" in removed else removed:
            if any((settings.run_dir / stage).rglob("manifest.json")):
                shutil.rmtree(aside / stage, ignore_errors=True)
                aside.mkdir(exist_ok=True)
                (settings.run_dir / stage).rename(aside / stage)
            shutil.rmtree(settings.run_dir / stage, ignore_errors=True)
        log.info("redo: the stages from `%s` on are kept in %s until the run has ended", name, aside)
    wait_for_all()


def run_all(settings: Settings) -> None:
    """Every stage in order, up to `run.until`."""
    from train.sft import train_sft

    use_cores(settings.run.threads)
    start = time.monotonic()
    hold(settings.run_dir, process()[0])
    log.info("settings: %s", json.dumps(as_plain(settings)))
    prepare(settings)
    makers = (make_candidates, make_rankings, make_scores, make_pairs, train_sft, train_dpo, evaluate)
    for name, make in zip(STAGES, makers, strict=True):
        if name == settings.run.redo_from:
            put_aside(settings, name)
        if name == NAME and settings.pairs.on_policy:
            make_second_round(settings)
        make(settings)
        if name == settings.run.until:
            break
    if process()[0] == 0:
        shutil.rmtree(settings.run_dir / ASIDE, ignore_errors=True)
    log.info("total: %.0f s, peak memory %.0f MB -> %s", time.monotonic() - start, peak_memory_mb(), settings.run_dir)
    if (settings.run_dir / NAME / "manifest.json").exists():
        adapter = settings.run_dir / NAME / "adapter"
        words = ["python", "-m", "rewriter", "--model", rewriter_model(settings), "--adapter", str(adapter)]
        for name in ("instruction", "history_messages", "history_words"):
            if getattr(settings.rewriter, name) not in ("", None):
                words += [f"--{name}", str(getattr(settings.rewriter, name))]
        log.info("to use it: %s", shlex.join(words))


def main() -> None:
    settings = read_settings(__doc__)
    set_up_logging()
    run_all(settings)


if __name__ == "__main__":
    run_command(main)
