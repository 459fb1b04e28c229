"""`--run.plan`: print which stages the command would run, resume or skip, and the estimated cost.

Reads the turns, the first passages of each collection, and the models' configurations and tokenizers. Loads no
weights, and writes nothing to the run folder.
"""

import tempfile
from itertools import islice
from pathlib import Path

from core.artifacts import read_json
from core.data_sources import data_sources
from core.errors import InputError
from core.settings import Settings
from core.tables import markdown_table
from retrieval.corpus import read_corpus
from train.adapter_training import last_checkpoint
from train.costs import DISTINCT, Costs, Work
from train.pipeline import redone_stages, selected_stages
from train.run import Run
from train.tiny.world import make_quickstart_data

PASSAGES = 64  # passages to tokenize from each collection
HEADER = ["stage", "state", "turns", "calls", "tokens", "FLOPs", "hours", "disk"]
NOTES = """
Parameters: {size:,} in the rewriter, {generator_size:,} in the generator, {adapter_size:,} in the adapter.
Hours: at {tflops:g} TFLOP/s over all processes (`run.tflops`), without retrieval and entailment models.
Assumptions: {distinct:g} of the samples retrieve distinct document lists. Outputs are as long as the turns' questions,
rewrites and replies, or as the settings allow.
"""


def plan(settings: Settings) -> str:
    """Format the stages of a command and their costs as a Markdown table.

    Raises:
        InputError: data, the configuration of a model, or a setting is invalid.
    """
    run_dir, redone = settings.run.path, redone_stages(settings)
    rows, total = [], Work()
    with tempfile.TemporaryDirectory() as temporary:
        costs = costs_of(settings, Path(temporary))
        for stage in selected_stages(settings):
            turns, work = costs.of(stage)
            state, share = ("run: redo_from", 1.0) if stage in redone else state_of(run_dir / stage, turns)
            work = work.times(share)
            total = total.plus(work)
            rows.append([stage, state, str(turns), *cells(work, settings.run.tflops)])
    rows.append(["total", "", "", *cells(total, settings.run.tflops)])
    return markdown_table(HEADER, rows) + NOTES.format(
        size=costs.size, generator_size=costs.generator_size, adapter_size=costs.adapter_size,
        tflops=settings.run.tflops, distinct=DISTINCT,
    )  # fmt: skip


def costs_of(settings: Settings, temporary: Path) -> Costs:
    """The costs of a run. If its tiny world does not exist yet, it is written to the temporary folder."""
    folder = settings.run.path
    if settings.data.format == "tiny_world" and not (folder / "data/world.json").exists():
        folder = temporary
        make_quickstart_data(folder / "data", settings.data.world_seed)
    sources, passages = data_sources(settings.data, folder), []
    for source in sources:
        source.check_corpus()
        errors: list[InputError] = []
        records = list(islice(read_corpus(source.corpus, errors.append), PASSAGES))
        if not records:
            raise InputError(f"{source.corpus}: the collection has no valid passage. {errors[0] if errors else ''}")
        passages += [passage.content for _, passage in records]
    return Costs(Run(settings, sources), passages)


def state_of(folder: Path, turns: int) -> tuple[str, float]:
    """The state of a stage, and the share of its work that remains."""
    if (folder / "manifest.json").exists():
        return "skip: complete", 0.0
    if checkpoint := last_checkpoint(folder / "checkpoints"):
        state = read_json(Path(checkpoint) / "trainer_state.json", "global_step", "max_steps")
        step, steps = state["global_step"], state["max_steps"]
        return f"resume: {step} of {steps} steps", 1 - step / steps
    parts = [*folder.glob("part-*.jsonl"), *folder.glob("records.jsonl")]
    done = sum(line.endswith(b"\n") for part in parts for line in part.read_bytes().splitlines(keepends=True))
    return (f"resume: {done} of {turns} records", max(0.0, 1 - done / turns)) if done else ("run: missing", 1.0)


def cells(work: Work, tflops: float) -> list[str]:
    """The cells of a row of the plan: calls, tokens, FLOPs, hours and disk."""
    hours = work.flops / tflops / 3.6e15
    duration = f"{hours:.2g}" if hours >= 0.01 or not hours else "under 0.01"
    return [si(work.calls), si(work.tokens), si(work.flops), duration, si(work.disk) + "B"]


def si(value: float) -> str:
    """Format a number with three digits and an SI prefix, such as 12.3k for 12,345."""
    for prefix in ("", "k", "M", "G", "T", "P", "E"):
        if value < 999.5:
            return f"{value:.3g}{prefix}"
        value /= 1000
    return f"{value:.3g}Z"
