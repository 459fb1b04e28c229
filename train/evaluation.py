"""STAGE evaluation: what each system retrieves and answers on held-out turns, side by side.

    python -m train.evaluation --config configs/quickstart.yaml

Systems: `original` (the question as it stands), `history` (all user turns joined), `base` (the untrained rewriter),
`base_examples` (the same with `rewriter.examples` in its prompt), `sft`, `dpo`, `reference` (a person's rewrite).
Writes `<run>/evaluation`: one record per turn, TREC runs and qrels, `per_turn.jsonl`, `metrics.json` and `table.md`.
With several data sets, results are also split by set.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from core.artifacts import Stage, completed
from core.cli import read_settings, run_command
from core.errors import InputError
from core.records import Turn
from core.runtime import log, process, set_up_logging, use_cores, wait_for_all
from core.settings import Settings, rewriter_model
from core.stages import carry_out, shared_out
from retrieval.collection import Collection, collections_of, identities_of
from retrieval.retriever import RetrieverOfSets, recorded_of_sets
from rewriter.conversations import turns_hash, turns_of
from rewriter.prompts import RewritePrompt, search_query, user_turns
from scoring.scores import generator_model
from train.pool import make_pool

NAME = "evaluation"
TRAINED = ("base", "base_examples", "sft", "dpo")
BATCH = 16  # turns that are rewritten, answered and saved together


def chosen_systems(settings: Settings, turns: list[Turn]) -> list[str]:
    """The systems of the settings that these turns allow: `reference` needs a rewrite in every turn that is measured.

    Raises:
        InputError: no turn has relevant documents or answers.
    """
    if not any(turn.relevant or turn.answers for turn in turns):
        raise InputError(
            f"the {settings.data.evaluate_on} turns have neither `relevant` nor `answers`: nothing can be measured. "
            "Add them to the file of these turns, or stop at the adapter with `--run.until dpo`."
        )
    measured = [turn for turn in turns if turn.relevant or (settings.evaluation.answers and turn.answers)]
    missing = sum(not turn.rewrite for turn in measured)
    systems = [name for name in settings.evaluation.systems if name != "reference" or not missing]
    if not systems:
        raise InputError(
            f"`evaluation.systems` has no system left: {missing} of {len(measured)} measured test turns have no "
            "`rewrite`."
        )
    return systems


def check_test(settings: Settings) -> None:
    """Read held-out turns and collections, and say what of the evaluation they do not allow.

    Raises:
        InputError: nothing can be measured, or no relevant document of a data set is in its collection.
    """
    turns = turns_of(settings, settings.data.evaluate_on, settings.run.limit)
    if len(chosen_systems(settings, turns)) < len(settings.evaluation.systems):
        log.warning("evaluation: no `reference` row; not every test turn that is measured has a `rewrite`")
    for name, collection in collections_of(settings).items():
        of_set = f" of `data.sets.{name}`" if name else ""
        own = [turn for turn in turns if turn.dataset == name]
        named = [doc for turn in own for doc, grade in turn.relevant.items() if grade >= 1]
        unknown = [doc for doc in named if doc not in collection]
        if unknown and len(unknown) == len(named):
            raise InputError(
                f"no `relevant` document of the {settings.data.evaluate_on} turns is in the collection{of_set}; the "
                f"first is `{unknown[0]}`."
            )
        if unknown:
            log.warning("evaluation: %d of %d relevant documents are not in the collection%s (first: `%s`)",
                        len(unknown), len(named), of_set, unknown[0])  # fmt: skip


def evaluation_stage(settings: Settings) -> Stage:
    """The stage's folder with what decides its content."""
    systems, answers, rule = settings.evaluation.systems, settings.evaluation.answers, settings.scoring
    collections, split = collections_of(settings), settings.data.evaluate_on
    decided = {
        "evaluation": {"systems": systems, "answers": answers},
        "retrieval": recorded_of_sets(settings.retrieval, collections),
        "limit": settings.run.limit,
    }
    if answers:
        decided["scoring"] = {"alpha": rule.alpha, "fallback": rule.fallback, "fallback_by": rule.fallback_by}
        limits = ("max_new_tokens", "document_tokens", "history_tokens")
        decided["generator"] = {name: getattr(settings.generator, name) for name in limits}
    if set(systems) & set(TRAINED):
        options = settings.rewriter
        decided["rewriter"] = {
            name: getattr(options, name)
            for name in ("instruction", "max_new_tokens", "history_messages", "history_words", "query")
        }
        decided["rewriter"] |= {"question_weight": options.question_weight} if options.query == "joined" else {}
        if "base_examples" in systems:
            decided["rewriter"]["examples"] = [asdict(example) for example in options.examples]
    inputs = {split: turns_hash(settings, split), "corpus": identities_of(collections)}
    for name in ("sft", "dpo"):
        if name in systems:
            inputs[name] = completed(settings.run_dir / name).identity()
    if {"base", "base_examples"} & set(systems) or answers:
        from core.language_model import fingerprint  # with torch, which nothing else here needs

        if {"base", "base_examples"} & set(systems):
            inputs["model"] = fingerprint(rewriter_model(settings), settings.rewriter.adapter)
        if answers:
            inputs["generator"] = fingerprint(*generator_model(settings))
    return Stage(settings.run_dir / NAME, decided, inputs, process()[0])


def rewriters(settings: Settings, systems: list[str]) -> dict[str, Callable[[list[Turn]], list[str]]]:
    """For each system a function from turns to queries; models are loaded only when a system needs one."""
    found: dict[str, Callable[[list[Turn]], list[str]]] = {
        "original": lambda turns: [turn.question for turn in turns],
        "history": lambda turns: [user_turns(turn.history, turn.question) for turn in turns],
        "reference": lambda turns: [turn.rewrite or turn.question for turn in turns],
    }
    options = settings.rewriter
    if set(systems) & set(TRAINED):
        from core.language_model import check_room, load_language_model
        from rewriter.sampling import greedy_rewrites

        for name in TRAINED:
            if name in systems:
                adapter = options.adapter if name.startswith("base") else str(settings.run_dir / name / "adapter")
                lm = load_language_model(rewriter_model(settings), adapter, options.dtype)
                check_room(lm, options.max_new_tokens, "rewriter.max_new_tokens")
                prompt = RewritePrompt.of(options, examples=name == "base_examples")
                found[name] = lambda turns, lm=lm, prompt=prompt: greedy_rewrites(lm, turns, options, prompt)
    return found


def evaluate(settings: Settings) -> Stage:
    """Bring the stage to its end and print the table."""
    from train.tables import write_report

    turns = turns_of(settings, settings.data.evaluate_on, settings.run.limit)
    systems = chosen_systems(settings, turns)

    def worker():
        collections = collections_of(settings)
        retriever = RetrieverOfSets(settings.retrieval, collections)
        queries_of = rewriters(settings, systems)
        generator = None
        if settings.evaluation.answers:
            from core.language_model import check_room, load_language_model
            from scoring.generator import Generator

            lm = load_language_model(*generator_model(settings), settings.generator.dtype)
            check_room(lm, settings.generator.max_new_tokens, "generator.max_new_tokens")
            generator = Generator.of(lm, settings.generator)

        def make(batch: list[Turn]) -> list[dict[str, Any]]:
            found: dict[str, list[dict[str, Any]]] = {}
            for name in systems:
                rewrites = queries_of[name](batch)
                queries = rewrites
                if name in TRAINED:
                    queries = [
                        search_query(turn.question, rewrite, settings.rewriter)
                        for turn, rewrite in zip(batch, rewrites, strict=True)
                    ]
                asked = [(turn.dataset, query) for turn, query in zip(batch, queries, strict=True)]
                hits = retriever.search(asked, settings.retrieval.depth)
                found[name] = [
                    {"query": query, "hits": [[hit.doc, hit.score] for hit in some]}
                    | ({"rewrite": rewrite} if rewrite != query else {})
                    for query, rewrite, some in zip(queries, rewrites, hits, strict=True)
                ]
            if generator is not None:
                add_answers(generator, settings, batch, found, collections)
            return [
                {"id": turn.id, "systems": {name: found[name][i] for name in systems}} for i, turn in enumerate(batch)
            ]

        return make

    stage = carry_out(evaluation_stage(settings), lambda: shared_out(turns, BATCH), worker, summarise)
    if process()[0] == 0:
        write_report(stage, settings, turns, systems)
    wait_for_all()
    return stage


def add_answers(
    generator,
    settings: Settings,
    batch: list[Turn],
    found: dict[str, list[dict]],
    collections: Mapping[str, Collection],
) -> None:
    """Answer each turn from each system's documents, equal lists once; add `answer` and `key_entropy`."""
    from scoring.generator import GenerationInput
    from scoring.grogu import score_of

    rule = settings.scoring

    def texts_of(turn: Turn, row: dict[str, Any]) -> list[str]:
        return collections[turn.dataset].contents([doc for doc, _ in row["hits"][: settings.retrieval.k]])

    rows = [(turn, found[name][i]) for i, turn in enumerate(batch) for name in found]
    readings = [GenerationInput.of(turn.history, turn.question, texts_of(turn, row)) for turn, row in rows]
    answered = generator.answers(readings)
    for (_, row), one in zip(rows, answered, strict=True):
        score = score_of(one.stats, one.answer, "key_entropy", rule.alpha, rule.fallback, rule.fallback_by)
        row.update(answer=one.answer, key_entropy=score.value if row["hits"] else None)


def summarise(records: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Totals: turns, rankings without a document, and empty answers."""
    counts: Counter = Counter()
    for record in records:
        systems = record["systems"].values()
        counts.update(total=1, without_hits=sum(not system["hits"] for system in systems))
        counts.update(without_answer=sum(system.get("answer") == "" for system in systems))
    return dict(counts)


def main() -> None:
    settings = read_settings(__doc__, alone=NAME)
    set_up_logging()
    if settings.evaluation.answers or set(settings.evaluation.systems) & set(TRAINED):
        use_cores(settings.run.threads)  # with torch, which nothing else here needs
    make_pool(settings)
    evaluate(settings)


if __name__ == "__main__":
    run_command(main)
