"""Cards of exported models and data sets, by the card classes of the Hub's library."""

import json
from pathlib import Path
from typing import Any

from huggingface_hub import DatasetCard, DatasetCardData, EvalResult, ModelCard, ModelCardData
from huggingface_hub.errors import EntryNotFoundError

from core.data_sources import is_hub_name
from core.settings import RewriterSettings
from core.tables import format_number, markdown_table
from rewriter.prompts import RewritePrompt
from train.report.checks import verdict
from train.report.run_data import RunData
from train.report_tables import SHOWN

FOLDER = Path(__file__).parent
SAMPLE = (
    [{"role": "user", "content": "Who founded Acme?"}, {"role": "assistant", "content": "Ann Lee."}],
    "And where was she born?",
)


def base_of(options: RewriterSettings) -> str | None:
    """The Hub id of the base model; None where it is a local folder or file."""
    return options.model if options.model and is_hub_name(options.model) else None


def licence_of(base: str | None) -> str | None:
    """The licence in the base model's card; None where it has none, or cannot be read."""
    if base is None:
        return None
    try:
        return ModelCard.load(base).data.license
    except (OSError, EntryNotFoundError, ValueError):
        return None


def model_card(data: RunData, options: RewriterSettings, adapter: bool) -> ModelCard:
    """The card of an exported rewriter: training, reward, results with intervals, how to load it, prompt, limits.

    Args:
        data: the run.
        options: the rewriter's settings.
        adapter: whether it is an adapter or a merged model.
    """
    base = base_of(options)
    licence = licence_of(base)
    metadata = ModelCardData(
        base_model=base, license=licence, library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation", tags=["query-rewriting", "conversational-search", "dpo", "trl"],
        model_name="Query rewriter", eval_results=eval_results(data) or None,
    )  # fmt: skip
    prompt = RewritePrompt.of(options).messages(*SAMPLE)
    searched = "the answer is the query"
    if options.query == "joined":
        searched = f"search the question {options.question_weight} times and then the answer"
    return ModelCard.from_template(
        metadata, template_path=FOLDER / "model_card.md", adapter=adapter, verdict=" ".join(verdict(data)),
        history=json.dumps(SAMPLE[0]), question=SAMPLE[1], max_new_tokens=options.max_new_tokens, query=searched,
        messages=json.dumps(prompt, indent=2),
        base=f", an adapter for `{base}`" if adapter and base else "", training=training_of(data),
        results=results_of(data), licence=f" ({licence})" if licence else "",
    )  # fmt: skip


def training_of(data: RunData) -> str:
    """What the rewriter was trained on, and how."""
    settings, first = data.settings, data.rounds[0].counts
    scored = settings.scoring
    lines = [
        f"- {first['candidates']['total']} turns of conversations, {settings.rewriter.n} sampled rewrites each",
        f"- reward `{scored.reward}` of the {settings.retrieval.k} documents that each rewrite retrieves "
        f"(`{settings.retrieval.engine}`), answer `{scored.answer}`",
    ]
    for each in data.rounds:
        for stage in ("sft", "dpo"):
            if stage in each.counts:
                counts = each.counts[stage]
                lines.append(f"- `round-{each.number}/{stage}`: {counts['total']} rows, {counts['steps']} steps")
    return "\n".join(lines)


def results_of(data: RunData) -> str:
    """The result table, with 95% intervals."""
    if not data.metrics:
        return "Not evaluated."
    systems, intervals = data.metrics["systems"], data.metrics["intervals"]
    measures = [m for m in (*SHOWN, data.metrics["reward"]) if any(m in values for values in systems.values())]
    rows = [
        [name, *(cell(values.get(m), intervals[name].get(m)) for m in measures)] for name, values in systems.items()
    ]
    table = markdown_table(["system", *measures], rows)
    return f"{data.metrics['turns']['total']} held-out turns; 95% intervals.\n\n{table}"


def cell(value: float | None, interval: list[float] | None) -> str:
    between = f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else ""
    return format_number(value) + between


def eval_results(data: RunData) -> list[EvalResult]:
    """The final system's measures as metadata."""
    values: dict[str, Any] = data.metrics.get("systems", {}).get(data.final or "", {})
    return [
        EvalResult(
            task_type="text-generation", task_name="conversational query rewriting", dataset_type="own",
            dataset_name="held-out turns", metric_type=measure, metric_value=round(values[measure], 4),
        )
        for measure in SHOWN
        if measure in values
    ]  # fmt: skip


def pairs_card(data: RunData, rounds: list[int]) -> DatasetCard:
    """The card of exported pairs."""
    metadata = DatasetCardData(
        task_categories=["text-generation"], tags=["query-rewriting", "preference", "dpo", "trl"],
        pretty_name="Preference pairs of a query rewriter",
    )  # fmt: skip
    counts = {each.number: each.counts["pairs"] for each in data.rounds if each.number in rounds}
    table = markdown_table(
        ["round", "turns", "pairs"], [[str(n), str(c["turns"]), str(c["total"])] for n, c in counts.items()]
    )
    return DatasetCard.from_template(
        metadata, template_path=FOLDER / "pairs_card.md", reward=data.settings.scoring.reward, table=table
    )
