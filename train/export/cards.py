"""Cards of exported models and data sets, from the templates `model_card.md` and `pairs_card.md`."""

import json
from pathlib import Path

from huggingface_hub import DatasetCard, DatasetCardData, EvalResult, ModelCard, ModelCardData
from huggingface_hub.errors import EntryNotFoundError

from core.data_sources import is_hub_name
from core.settings import RewriterSettings
from core.tables import format_number, markdown_table
from rewriter.prompts import RewritePrompt
from train.report.checks import verdict
from train.report.run_data import TRAINING, RunData
from train.report_tables import SHOWN

FOLDER = Path(__file__).parent
SAMPLE = (
    [{"role": "user", "content": "Who founded Acme?"}, {"role": "assistant", "content": "Ann Lee."}],
    "And where was she born?",
)


def model_card(data: RunData, options: RewriterSettings, adapter: bool) -> ModelCard:
    """Build the card of an adapter, or of a merged model: usage, prompt, training, reward, results with intervals, and
    limits."""
    base = options.model if options.model and is_hub_name(options.model) else None  # None for a local folder or file
    license = license_of(base) if base else None
    results = data.systems.get(data.final, {})
    metadata = ModelCardData(
        base_model=base, license=license, library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation", tags=["query-rewriting", "conversational-search", "dpo", "trl"],
        model_name="Query rewriter",
        eval_results=[
            EvalResult(
                task_type="text-generation", task_name="conversational query rewriting", dataset_type="own",
                dataset_name="held-out turns", metric_type=measure, metric_value=round(results[measure], 4),
            )
            for measure in SHOWN if measure in results
        ] or None,
    )  # fmt: skip
    messages = json.dumps(RewritePrompt.of(options).messages(*SAMPLE), indent=2)
    return ModelCard.from_template(
        metadata, template_path=FOLDER / "model_card.md", adapter=adapter, verdict=" ".join(verdict(data)),
        history=json.dumps(SAMPLE[0]), question=SAMPLE[1], options=options, messages=messages, base=base, data=data,
        license=license, settings=data.run.settings, training=TRAINING, results=results_of(data),
    )  # fmt: skip


def license_of(base: str) -> str | None:
    """The license in the base model's card; None if the card has none or cannot be read."""
    try:
        return ModelCard.load(base).data.license
    except (OSError, EntryNotFoundError, ValueError):
        return None


def results_of(data: RunData) -> str:
    """Format the result table with 95% intervals."""

    def cell(name: str, measure: str) -> str:
        interval = data.metrics["intervals"][name].get(measure)
        between = f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else ""
        return format_number(data.systems[name].get(measure)) + between

    rows = [[name, *(cell(name, measure) for measure in data.measures)] for name in data.systems]
    return markdown_table(["system", *data.measures], rows)


def pairs_card(data: RunData) -> DatasetCard:
    """Build the card of exported pairs."""
    metadata = DatasetCardData(
        task_categories=["text-generation"], tags=["query-rewriting", "preference", "dpo", "trl"],
        pretty_name="Preference pairs of a query rewriter",
    )  # fmt: skip
    rounds = [(r.number, r.counts["pairs"]) for r in data.rounds if "pairs" in r.counts]
    rows = [[str(number), str(counts["turns"]), str(counts["total"])] for number, counts in rounds]
    return DatasetCard.from_template(
        metadata, template_path=FOLDER / "pairs_card.md", reward=data.run.settings.scoring.reward,
        table=markdown_table(["round", "turns", "pairs"], rows),
    )  # fmt: skip
