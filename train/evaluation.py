"""STAGE evaluation: compare what systems retrieve and answer on held-out turns.

Systems: `original` (the unchanged question), `history` (all user turns joined), `base` (the untrained rewriter),
`base_examples` (the same with `rewriter.examples` in its prompt), `sft`, `dpo` (and `dpo-1`, ... for earlier rounds),
`reference` (a human rewrite). The folder also contains TREC runs and qrels, `per_turn.jsonl`, `metrics.json` and
`table.md`. With several data sets, results are also split by set.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from core.distributed import process, wait_for_all
from core.errors import InputError
from core.language_model import LanguageModel, check_room
from core.model_spec import ModelSpec, load_with_adapters
from core.progress import log
from core.records import EvaluationRecord, Hit, SystemResult, Turn
from core.settings import RewriterSettings, Settings
from core.stage_runner import run_stage
from core.stages import Stage, load_stage
from retrieval.collection import Collection, identities_of
from retrieval.engines import PerDatasetRetriever, ranking_config
from rewriter.conversations import TurnSet
from rewriter.prompts import RewritePrompt, search_query, user_turns
from rewriter.rewriter import server_backend
from rewriter.sampling import greedy_rewrites
from scoring.registry import component_rewards, has_reward, needs_entailment, relevant_settings
from scoring.scorer import build_scorer
from train.evaluation_rewards import Results, questions_of_others, score_results
from train.report_tables import write_tables
from train.run import EVALUATION, Run

if TYPE_CHECKING:
    from rewriter.server_backend import ServerBackend

BASELINES = ("original", "history", "reference")  # systems that are not a language model
UNTRAINED = ("base", "base_examples")
SHUFFLED = "shuffled"  # control: documents retrieved for another conversation
BATCH_SIZE = 16  # turns rewritten, answered and saved together


def select_systems(settings: Settings, trained: Iterable[str], turns: Sequence[Turn]) -> tuple[str, ...]:
    """Select the systems that can be evaluated on these turns.

    `reference` needs a rewrite in every measured turn. `dpo` includes the systems of earlier rounds in `trained`.

    Raises:
        InputError: nothing can be measured, or no system is left.
    """
    options = settings.evaluation
    measured = [turn for turn in turns if turn.gold or (options.answers and turn.answers)]
    if not measured and options.answers:
        measured = [turn for turn in turns if has_reward(turn, settings.scoring)]
    if not measured:
        raise InputError(
            "the turns to evaluate on have neither `relevant` nor `answers`: nothing can be measured. Add them to the "
            "file of these turns, set `evaluation.answers: true` with a reward that needs no labels, or stop before "
            "the evaluation with `--run.until dpo`."
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
    """Check the labels of the held-out turns before the run computes anything.

    Warns about relevant documents that are not in the collection, and about missing rewrites for `reference`.

    Raises:
        InputError: nothing can be measured, or no relevant document of a data set is in its collection.
    """
    systems = select_systems(settings, [], turns.turns)
    if "reference" in settings.evaluation.systems and "reference" not in systems:
        log.warning("evaluation: no `reference` row, because some measured turns have no `rewrite`")
    for name, collection in collections.items():
        of_set = f" of `data.sets.{name}`" if name else ""
        relevant = [doc for turn in turns if turn.dataset == name for doc in turn.gold]
        unknown = [doc for doc in relevant if doc not in collection]
        if unknown and len(unknown) == len(relevant):
            raise InputError(
                f"no `relevant` document of the {settings.data.evaluate_on} turns is in the collection{of_set}; the "
                f"first is `{unknown[0]}`."
            )
        if unknown:
            log.warning("evaluation: %d of %d relevant documents are not in the collection%s (first: `%s`)",
                        len(unknown), len(relevant), of_set, unknown[0])  # fmt: skip


def trained_systems(run: Run) -> dict[str, Stage]:
    """The trained systems to evaluate -> the training stage of each."""
    rounds = run.settings.train.rounds
    stages = {"sft": "round-1/sft"} | {f"dpo-{n}": f"round-{n}/dpo" for n in range(1, rounds)}
    stages["dpo"] = f"round-{rounds}/dpo"
    chosen = run.settings.evaluation.systems
    return {name: load_stage(run.path, stage) for name, stage in stages.items() if name.split("-")[0] in chosen}


def make_evaluation(run: Run) -> Stage:
    """Run the stage, and print the table."""
    settings, turns, trained = run.settings, run.test_turns, trained_systems(run)
    systems = select_systems(settings, trained, turns.turns)
    stage = evaluation_stage(run, systems, trained)
    adapters = {
        name: str(trained[name].folder / "adapter") if name in trained else run.base.adapter
        for name in systems
        if name in trained or (name in UNTRAINED and not settings.rewriter.url)
    }

    def load_worker():
        retriever = PerDatasetRetriever(settings.retrieval, run.collections)
        rewriter, scorer = load_models(run, adapters)
        server = server_backend(settings.rewriter) if settings.rewriter.url else None
        other_questions = questions_of_others(turns.turns)

        def search(batch: list[Turn], queries: Sequence[str], k: int) -> list[Sequence[Hit]]:
            return retriever.search([(turn.dataset, query) for turn, query in zip(batch, queries, strict=True)], k)

        def evaluate(batch: list[Turn]) -> list[EvaluationRecord]:
            results: dict[str, list[SystemResult]] = {}
            for name in systems:
                queries = rewrites = rewrites_of(name, batch, settings.rewriter, adapters, rewriter, server)
                if name not in BASELINES:
                    pairs = zip(batch, rewrites, strict=True)
                    queries = [search_query(turn.question, text, settings.rewriter) for turn, text in pairs]
                rankings = search(batch, queries, settings.retrieval.depth)
                results[name] = [
                    SystemResult(query, tuple(ranking), rewrite if rewrite != query else None)
                    for query, rewrite, ranking in zip(queries, rewrites, rankings, strict=True)
                ]
            shuffled: list[float | None] = [None] * len(batch)
            if scorer is not None:
                rankings = search(batch, [other_questions[turn.id] for turn in batch], settings.retrieval.k)
                controls = [SystemResult(t.question, tuple(r)) for t, r in zip(batch, rankings, strict=True)]
                results = scorer(batch, results | {SHUFFLED: controls})
                shuffled = [result.reward for result in results[SHUFFLED]]
            return [
                EvaluationRecord(turn.id, {name: results[name][i] for name in systems}, shuffled[i])
                for i, turn in enumerate(batch)
            ]

        return evaluate

    run_stage(stage, turns, BATCH_SIZE, load_worker, summarize)
    if process()[0] == 0:
        write_tables(stage, settings, turns.turns, systems)
    wait_for_all()
    return stage


def evaluation_stage(run: Run, systems: Sequence[str], trained: Mapping[str, Stage]) -> Stage:
    """Build the stage with the settings and inputs that affect its records."""
    settings, rule = run.settings, run.settings.scoring
    decided: dict[str, Any] = {
        "systems": list(systems),
        "answers": settings.evaluation.answers,
        "retrieval": ranking_config(settings.retrieval, run.collections),
    }
    inputs: dict[str, Any] = {"turns": run.test_turns.fingerprint, "corpus": identities_of(run.collections)}
    if settings.evaluation.answers:
        decided["scoring"] = {"alpha": rule.alpha, "fallback": rule.fallback, "fallback_by": rule.fallback_by}
        decided["scoring"] |= relevant_settings(rule)
        decided["generator"] = settings.generator.limits
        inputs["generator"] = run.generator.fingerprint
        if needs_entailment(component_rewards(rule)):
            inputs["entailment"] = ModelSpec(rule.entailment).fingerprint
    if any(name in trained or name in UNTRAINED for name in systems):
        names = ("instruction", "max_new_tokens", "history_messages", "history_words", "query", "question_weight")
        decided["rewriter"] = {name: getattr(settings.rewriter, name) for name in names}
        if settings.rewriter.url and set(UNTRAINED) & set(systems):
            inputs["server"] = settings.rewriter.server
            decided["rewriter"]["extra_body"] = settings.rewriter.extra_body
        if "server" not in inputs or set(trained) & set(systems):
            inputs["model"] = run.base.fingerprint
    if "base_examples" in systems:
        decided["rewriter"]["examples"] = asdict(settings.rewriter)["examples"]
    inputs |= {name: trained[name].identity for name in systems if name in trained}
    return Stage(run.path, EVALUATION, decided, inputs, EvaluationRecord)


def load_models(
    run: Run, adapters: Mapping[str, str | None]
) -> tuple[LanguageModel | None, Callable[[Sequence[Turn], Results], Results] | None]:
    """Load the rewriter with all adapters, and the scorer; they share a model if rewriter and generator are the same.

    `adapters` maps each system that is a language model to its adapter, or to None for the base model.

    Returns:
        The rewriter, None if no system is a language model; a function that adds answers and rewards to results, see
        `score_results`, None without `evaluation.answers`.
    """
    settings = run.settings
    rewriter = shared = scorer = None
    if adapters:
        rewriter = load_with_adapters(run.base, {name: folder for name, folder in adapters.items() if folder})
        check_room(rewriter, settings.rewriter.max_new_tokens, "rewriter.max_new_tokens")
    if settings.evaluation.answers:
        if rewriter is not None and run.generator == replace(run.base, adapter=None):
            shared = rewriter
        names = [*component_rewards(settings.scoring), "key_entropy"]
        built = build_scorer(run.generator, settings.scoring, settings.generator, names, settings.run.seed, shared)
        scorer = partial(score_results, built, run.collections, settings.retrieval.k, shared)
    return rewriter, scorer


def rewrites_of(
    name: str,
    turns: list[Turn],
    options: RewriterSettings,
    adapters: Mapping[str, str | None],
    lm: LanguageModel | None,
    server: "ServerBackend | None",
) -> list[str]:
    """The rewrites of a system for a batch of turns; for one of `BASELINES`, the search queries themselves.

    With `rewriter.url`, the server rewrites for the untrained systems.
    """
    if name == "original":
        return [turn.question for turn in turns]
    if name == "history":
        return [user_turns(turn.history, turn.question) for turn in turns]
    if name == "reference":
        return [turn.rewrite or turn.question for turn in turns]
    prompt = RewritePrompt.of(options, examples=name == "base_examples")
    if name not in adapters:
        return server.greedy_rewrites(turns, prompt)
    with lm.using(name if adapters[name] else None):
        return greedy_rewrites(lm, turns, options, prompt)


def summarize(records: Iterable[EvaluationRecord]) -> dict[str, Any]:
    """Count turns, rankings without a document, and empty answers."""
    counts: Counter = Counter()
    for record in records:
        systems = record.systems.values()
        counts.update(total=1, without_hits=sum(not result.hits for result in systems))
        counts.update(without_answer=sum(result.answer == "" for result in systems))
    return dict(counts)
