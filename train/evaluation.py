"""STAGE evaluation: what each system retrieves and answers on held-out turns, side by side.

Systems: `original` (the question as it is), `history` (all user turns joined), `base` (the untrained rewriter),
`base_examples` (the same with `rewriter.examples` in its prompt), `sft`, `dpo` (of earlier rounds: `dpo-1`, ...),
`reference` (a person's rewrite). The folder also holds TREC runs and qrels, `per_turn.jsonl`, `metrics.json` and
`table.md`. With several data sets, results are also split by set.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from core.distributed import process, wait_for_all
from core.errors import InputError
from core.language_model import LanguageModel, check_room
from core.model_spec import ModelSpec, load_with_adapters
from core.progress import log
from core.records import EvaluationRecord, SystemResult, Turn
from core.settings import Settings
from core.stage_runner import run_stage
from core.stages import Stage
from retrieval.collection import Collection, identities_of
from retrieval.engines import PerDatasetRetriever, ranking_config
from rewriter.conversations import TurnSet
from rewriter.prompts import RewritePrompt, search_query, user_turns
from rewriter.sampling import greedy_rewrites
from scoring.registry import component_rewards, has_reward, needs_seper, relevant_settings
from scoring.scorer import build_scorer
from train.evaluation_rewards import ResultScorer, turns_of_others
from train.report_tables import write_tables

NAME = "evaluation"
UNTRAINED = ("base", "base_examples")
BATCH_SIZE = 16  # turns that are rewritten, answered and saved together


@dataclass(frozen=True)
class Systems:
    """The systems of an evaluation.

    Args:
        names: in the order of the table.
        base: the untrained rewriter.
        trained: system -> the training stage that made its adapter.
    """

    names: tuple[str, ...]
    base: ModelSpec | None
    trained: Mapping[str, Stage]

    @property
    def rewriters(self) -> list[str]:
        """The systems that are language models."""
        return [name for name in self.names if name in UNTRAINED or name in self.trained]

    def adapter_of(self, name: str) -> str | None:
        """The name under which `load_models` loads the adapter of a system; None for the bare model."""
        return name if name in self.trained else "base" if self.base.adapter else None


def select_systems(settings: Settings, trained: Mapping[str, Stage], turns: Sequence[Turn]) -> tuple[str, ...]:
    """The systems that can be evaluated on these turns: `reference` needs a rewrite in every turn that is measured,
    and `dpo` brings those of earlier rounds along.

    Raises:
        InputError: nothing can be measured, or no system is left.
    """
    options = settings.evaluation
    measured = [turn for turn in turns if turn.relevant or (options.answers and turn.answers)]
    if not measured and options.answers:
        measured = [turn for turn in turns if has_reward(turn, settings.scoring)]
    if not measured:
        raise InputError(
            "the turns to evaluate on have neither `relevant` nor `answers`: nothing can be measured. Add them to the "
            "file of these turns, set `evaluation.answers: true` with a reward that needs no labels, or stop at the "
            "adapter with `--run.until dpo`."
        )
    missing = sum(not turn.rewrite for turn in measured)
    earlier = [name for name in trained if name.startswith("dpo-")]
    chosen = [
        system
        for name in options.systems
        if name != "reference" or not missing
        for system in ([*earlier, name] if name == "dpo" else [name])
    ]
    if not chosen:
        raise InputError(
            f"`evaluation.systems` has no system left: {missing} of {len(measured)} measured turns have no `rewrite`."
        )
    return tuple(chosen)


def check_test_turns(turns: TurnSet, collections: Mapping[str, Collection], settings: Settings) -> None:
    """Report what the held-out turns do not allow, before anything is computed.

    Raises:
        InputError: nothing can be measured, or no relevant document of a data set is in its collection.
    """
    systems = select_systems(settings, {}, turns.turns)
    if "reference" in settings.evaluation.systems and "reference" not in systems:
        log.warning("evaluation: no `reference` row; some turns that are measured have no `rewrite`")
    for name, collection in collections.items():
        of_set = f" of `data.sets.{name}`" if name else ""
        relevant = [d for t in turns if t.dataset == name for d, grade in t.relevant.items() if grade >= 1]
        unknown = [doc for doc in relevant if doc not in collection]
        if unknown and len(unknown) == len(relevant):
            raise InputError(
                f"no `relevant` document of the {settings.data.evaluate_on} turns is in the collection{of_set}; the "
                f"first is `{unknown[0]}`."
            )
        if unknown:
            log.warning("evaluation: %d of %d relevant documents are not in the collection%s (first: `%s`)",
                        len(unknown), len(relevant), of_set, unknown[0])  # fmt: skip


def make_evaluation(
    settings: Settings,
    turns: TurnSet,
    collections: Mapping[str, Collection],
    base: ModelSpec | None,
    generator: ModelSpec | None,
    trained: Mapping[str, Stage],
) -> Stage:
    """Complete the stage, and print the table.

    Args:
        settings: of the run.
        turns: the held-out turns.
        collections: data set -> its collection.
        base: the untrained rewriter; None where no system needs one.
        generator: the model that answers; None without answers.
        trained: system -> the complete training stage that made its adapter.
    """
    systems = Systems(select_systems(settings, trained, turns.turns), base, trained)
    stage = evaluation_stage(settings, turns, collections, generator, systems)

    def load_worker():
        retriever = PerDatasetRetriever(settings.retrieval, collections)
        rewriter, scorer = load_models(settings, systems, generator, collections)
        queries_of = query_functions(settings, systems, rewriter)
        others = turns_of_others(list(turns))

        def evaluate(batch: list[Turn]) -> list[EvaluationRecord]:
            results: dict[str, list[SystemResult]] = {}
            for name in systems.names:
                queries, rewrites = queries_of[name](batch)
                datasets = [turn.dataset for turn in batch]
                hits = retriever.search(list(zip(datasets, queries, strict=True)), settings.retrieval.depth)
                results[name] = [
                    SystemResult(query, tuple(ranking), rewrite if rewrite != query else None)
                    for query, rewrite, ranking in zip(queries, rewrites, hits, strict=True)
                ]
            shuffled: list[float | None] = [None] * len(batch)
            if scorer is not None:
                questions = [(turn.dataset, others[turn.id].question if turn.id in others else "") for turn in batch]
                hits = retriever.search(questions, settings.retrieval.k)
                results, shuffled = scorer.add(batch, results, hits)
            return [
                EvaluationRecord(turn.id, {name: results[name][i] for name in systems.names}, shuffled[i])
                for i, turn in enumerate(batch)
            ]

        return evaluate

    run_stage(stage, turns, BATCH_SIZE, load_worker, summarize)
    if process()[0] == 0:
        write_tables(stage, settings, turns, systems.names)
    wait_for_all()
    return stage


def evaluation_stage(
    settings: Settings,
    turns: TurnSet,
    collections: Mapping[str, Collection],
    generator: ModelSpec | None,
    systems: Systems,
) -> Stage:
    """The stage with the settings and inputs that decide its records."""
    options, rule, answers = settings.rewriter, settings.scoring, settings.evaluation.answers
    decided: dict[str, Any] = {
        "systems": list(systems.names),
        "answers": answers,
        "retrieval": ranking_config(settings.retrieval, collections),
    }
    inputs: dict[str, Any] = {"turns": turns.fingerprint, "corpus": identities_of(collections)}
    if answers:
        decided["scoring"] = {"alpha": rule.alpha, "fallback": rule.fallback, "fallback_by": rule.fallback_by}
        decided["scoring"] |= relevant_settings(rule)
        limits = ("max_new_tokens", "document_tokens", "history_tokens")
        decided["generator"] = {name: getattr(settings.generator, name) for name in limits}
        inputs["generator"] = generator.fingerprint
        if needs_seper(component_rewards(rule)):
            inputs["entailment"] = ModelSpec(rule.entailment).fingerprint
    if systems.rewriters:
        names = ("instruction", "max_new_tokens", "history_messages", "history_words", "query", "question_weight")
        decided["rewriter"] = {name: getattr(options, name) for name in names}
        inputs["model"] = systems.base.fingerprint
    if "base_examples" in systems.names:
        decided["rewriter"]["examples"] = asdict(options)["examples"]
    inputs |= {name: systems.trained[name].identity for name in systems.names if name in systems.trained}
    return Stage(settings.run.path, NAME, decided, inputs, EvaluationRecord)


def load_models(
    settings: Settings, systems: Systems, generator: ModelSpec | None, collections: Mapping[str, Collection]
) -> tuple[LanguageModel | None, ResultScorer | None]:
    """The rewriter with all adapters, and what answers and scores; one base model where both are the same. None where
    there is nothing to rewrite, or to read."""
    rewriter = scorer = None
    if systems.rewriters:
        adapters = {"base": systems.base.adapter} if systems.base.adapter else {}
        adapters |= {name: str(stage.folder / "adapter") for name, stage in systems.trained.items()}
        rewriter = load_with_adapters(systems.base, adapters)
        check_room(rewriter, settings.rewriter.max_new_tokens, "rewriter.max_new_tokens")
    if settings.evaluation.answers:
        shared = rewriter if rewriter is not None and generator == replace(systems.base, adapter=None) else None
        names = [*component_rewards(settings.scoring), "key_entropy"]
        built = build_scorer(generator, settings.scoring, settings.generator, names, settings.run.seed, shared)
        scorer = ResultScorer(built, collections, settings.retrieval.k, shared)
    return rewriter, scorer


def query_functions(
    settings: Settings, systems: Systems, lm: LanguageModel | None
) -> dict[str, Callable[[list[Turn]], tuple[list[str], list[str]]]]:
    """For each system a function from turns to search queries and rewrites."""
    options = settings.rewriter

    def as_they_are(text_of: Callable[[Turn], str]):
        return lambda turns: ([text_of(turn) for turn in turns],) * 2

    def rewritten(name: str):
        prompt = RewritePrompt.of(options, examples=name == "base_examples")

        def rewrite(turns: list[Turn]) -> tuple[list[str], list[str]]:
            with lm.using(systems.adapter_of(name)):
                rewrites = greedy_rewrites(lm, turns, options, prompt)
            pairs = zip(turns, rewrites, strict=True)
            return [search_query(turn.question, text, options) for turn, text in pairs], rewrites

        return rewrite

    return {
        "original": as_they_are(lambda turn: turn.question),
        "history": as_they_are(lambda turn: user_turns(turn.history, turn.question)),
        "reference": as_they_are(lambda turn: turn.rewrite or turn.question),
    } | {name: rewritten(name) for name in systems.rewriters}


def summarize(records: Iterable[EvaluationRecord]) -> dict[str, Any]:
    """Totals: turns, rankings without a document, and empty answers."""
    counts: Counter = Counter()
    for record in records:
        systems = record.systems.values()
        counts.update(total=1, without_hits=sum(not result.hits for result in systems))
        counts.update(without_answer=sum(result.answer == "" for result in systems))
    return dict(counts)
