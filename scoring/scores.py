"""STAGE scores: the generator judges every candidate's documents.

    python -m scoring.scores --config configs/quickstart.yaml

Reads the turns, the collections, `<run>/candidates` and `<run>/rankings`; writes `<run>/scores`: `{"id", "lists":
[{"documents", "value", "answer", "error", "rule", "key", "stats", ...}], "list_of": [index per candidate]}`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from core.artifacts import Stage, completed
from core.cli import read_settings, run_command
from core.errors import InputError, first_line
from core.records import Score, Turn
from core.runtime import log, process, set_up_logging, use_cores
from core.settings import GeneratorSettings, ScoringSettings, Settings, rewriter_model
from core.stages import carry_out, shared_out
from retrieval.collection import Collection, collections_of, identities_of
from rewriter.conversations import turns_hash, turns_of
from scoring.labels import check_labels, parts_of, settings_read

NAME = "scores"
BATCH = 8  # turns whose document lists are scored, and saved, together


@dataclass(frozen=True)
class Job:
    """The distinct document lists of one turn: documents with the retriever's scores, and what the generator is asked
    beside each."""

    turn: Turn
    lists: tuple[tuple[tuple[str, float], ...], ...]
    questions: tuple[str, ...]
    list_of: tuple[int, ...]

    @property
    def id(self) -> str:
        return self.turn.id


def job_of(
    turn: Turn,
    candidates: list[str],
    rankings: list[list[list]],
    question: str = "conversation",
    by_score: bool = False,
) -> Job:
    """Merge the candidates that ask the same of the same documents.

    Args:
        turn: the turn.
        candidates: its rewrites.
        rankings: for each, `[document, score]` in rank order.
        question: `conversation` or `rewrite` (`scoring.question`).
        by_score: whether lists that differ in the retriever's scores alone are different.
    """
    asked = [text if question == "rewrite" else turn.question for text in candidates]
    distinct: dict[tuple, tuple] = {}
    keys = []
    for text, ranking in zip(asked, rankings, strict=True):
        hits = tuple((doc, score) for doc, score in ranking)
        keys.append((hits if by_score else tuple(doc for doc, _ in hits), text))
        distinct.setdefault(keys[-1], (hits, text))
    order = list(distinct)
    lists, questions = zip(*distinct.values(), strict=True) if distinct else ((), ())
    return Job(turn, lists, questions, tuple(order.index(key) for key in keys))


def scores_stage(settings: Settings) -> Stage:
    """The stage's folder with what decides its content."""
    from core.language_model import fingerprint

    generator = asdict(settings.generator)
    for name in ("batch_tokens", "model", "adapter"):  # the models are inputs, known by what is in them
        del generator[name]
    decided = settings_read(settings.scoring) | generator
    rankings, train = completed(settings.run_dir / "rankings"), turns_hash(settings, "train")
    corpus = identities_of(collections_of(settings))
    rankings.expect(inputs={"corpus": corpus}, settings={"k": settings.retrieval.k})
    completed(settings.run_dir / "candidates").expect(inputs={"train": train}, settings={"limit": settings.run.limit})
    inputs = {
        "rankings": rankings.identity(),
        "train": train,
        "model": fingerprint(*generator_model(settings)),
    }
    if any(name.startswith("delta_seper") for name in parts_of(settings.scoring)):
        inputs["entailment"] = fingerprint(settings.scoring.entailment)
    return Stage(settings.run_dir / NAME, decided, inputs, process()[0])


def generator_model(settings: Settings) -> tuple[str, str | None]:
    """The generator's model and adapter: the rewriter's own where none is named."""
    if settings.generator.model:
        return settings.generator.model, settings.generator.adapter
    return rewriter_model(settings), settings.rewriter.adapter


def check_scoring(settings: Settings) -> None:
    """Make sure, before anything is computed, that the reward can be: its labels and its models are there.

    Raises:
        InputError: names the field that turns lack, or the model that cannot be read.
    """
    check_labels(turns_of(settings, "train", settings.run.limit), settings.scoring, "`data.train`")
    seper = any(name.startswith("delta_seper") for name in parts_of(settings.scoring))
    judge = settings.scoring.entailment
    for key, name in (("generator.model", generator_model(settings)[0]), ("scoring.entailment", judge)):
        if key != "scoring.entailment" or (seper and judge != "exact"):
            check_model(key, name)


def make_scores(settings: Settings) -> Stage:
    """Bring the stage to its end."""
    names = parts_of(settings.scoring)

    def plan() -> list[list[Job]]:
        turns = {turn.id: turn for turn in turns_of(settings, "train", settings.run.limit)}
        check_labels(list(turns.values()), settings.scoring, "`data.train`")
        texts = {
            record["id"]: [candidate["text"] for candidate in record["candidates"]]
            for record in completed(settings.run_dir / "candidates").records()
        }
        by_score = "answer_logprob" in names
        jobs = [
            job_of(turns[record["id"]], texts[record["id"]], record["rankings"], settings.scoring.question, by_score)
            for record in completed(settings.run_dir / "rankings").records()
        ]
        return shared_out(sorted(jobs, key=lambda job: job.id), BATCH)

    def worker():
        collections = collections_of(settings)
        judge = judge_of(generator_model(settings), settings.scoring, settings.generator, names, settings.run.seed)

        def make(jobs: list[Job]) -> list[dict[str, Any]]:
            scored = iter(score_lists(judge, names, settings, jobs, collections))
            return [{"id": job.id, "lists": [next(scored) for _ in job.lists], "list_of": job.list_of} for job in jobs]

        return make

    return carry_out(scores_stage(settings), plan, worker, summarise, settings.run.max_failed_fraction)


def check_model(key: str, name: str) -> None:
    """Make sure that a model's settings can be read.

    Raises:
        InputError: they cannot; names the setting `key`, the model and the cause.
    """
    from transformers import AutoConfig

    from core.gguf import model_folder

    folder = name if key == "scoring.entailment" else model_folder(name)
    try:
        AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        way_out = "; `exact` needs no model" if key == "scoring.entailment" else ""
        raise InputError(f"`{key}`: {name} cannot be read: {first_line(error)}{way_out}") from error


def judge_of(
    model: tuple[str, str | None],
    scoring: ScoringSettings,
    generator: GeneratorSettings,
    names: Sequence[str],
    seed: int,
):
    """What computes the rewards of these names: models are loaded only when one needs them.

    Args:
        model: the generator and its adapter.
        scoring: options of the rewards.
        generator: its dtype, and the limits on its outputs and batches.
        names: of rewards.
        seed: of sampled answers.

    Raises:
        InputError: an output is as long as the generator's context, or a model cannot be loaded.
    """
    from core.language_model import check_room, load_language_model
    from scoring.entailment import load_entailment
    from scoring.generator import Generator
    from scoring.rewards import Scorer

    lm = load_language_model(*model, generator.dtype) if set(names) - {"reciprocal_rank"} else None
    if lm is not None:
        check_room(lm, generator.max_new_tokens, "generator.max_new_tokens")
    seper = any(name.startswith("delta_seper") for name in names)
    if seper:
        check_room(lm, scoring.sample_tokens, "scoring.sample_tokens")
    entailment = load_entailment(scoring.entailment, generator.batch_tokens) if seper else None
    return Scorer(Generator.of(lm, generator) if lm else None, scoring, entailment, seed)


def score_lists(
    judge, names: list[str], settings: Settings, jobs: list[Job], collections: Mapping[str, Collection]
) -> list[dict[str, Any]]:
    """Score the document lists of several turns; one JSON-ready record each, in order."""
    from scoring.rewards import weighted

    items = [
        item_of(job, i, settings.scoring.question, collections[job.turn.dataset])
        for job in jobs
        for i in range(len(job.lists))
    ]
    scored = iter(judge.scores(items, names))
    made = []
    for job in jobs:
        found = [next(scored) for _ in job.lists]
        scores = [of[names[0]] for of in found]
        if settings.scoring.reward == "weighted":
            parts = [{name: score.value for name, score in of.items()} for of in found]
            errors = [next((score.error for score in of.values() if score.error), None) for of in found]
            scores = [
                replace(score, value=value, parts=part, error=error)
                for score, value, part, error in zip(
                    scores, weighted(parts, settings.scoring.weights), parts, errors, strict=True
                )
            ]
        made += [record_of(hits, score) for hits, score in zip(job.lists, scores, strict=True)]
    return made


def item_of(job: Job, i: int, question: str, collection: Collection):
    """One document list as what the rewards judge."""
    from scoring.generator import GenerationInput
    from scoring.rewards import RewardInput

    turn, hits = job.turn, job.lists[i]
    history = () if question == "rewrite" else turn.history
    return RewardInput(
        GenerationInput.of(history, job.questions[i], collection.contents([doc for doc, _ in hits])),
        tuple(turn.relevant.get(doc, 0) >= 1 for doc, _ in hits) if turn.relevant else None,
        turn.answers,
        tuple(score for _, score in hits),
        turn.reply or next(iter(turn.answers), ""),
    )


def record_of(hits: Iterable[tuple[str, float]], score: Score) -> dict[str, Any]:
    """A score as it is written: its documents, its value, and what is not empty."""
    made = {key: value for key, value in asdict(score).items() if value not in (None, (), {}, "") or key == "value"}
    return {"documents": [doc for doc, _ in hits]} | made


def summarise(records: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Totals. A turn is failed when none of its lists has a score."""
    counts: Counter = Counter()
    reasons: Counter = Counter()
    for record in records:
        lists = record["lists"]
        errors = [scored["error"] for scored in lists if scored.get("error")]
        counts.update(total=1, candidates=len(record["list_of"]), lists=len(lists), unscored=len(errors))
        counts.update(failed=bool(lists) and len(errors) == len(lists))
        counts.update(abstaining=sum(scored["abstains"] for scored in lists))
        counts.update(documents_cut=sum(scored["cut"] for scored in lists))
        counts.update(logged=sum(scored.get("answer_source") == "logged" for scored in lists))
        counts.update(fallback=sum(scored.get("rule") == "fallback" for scored in lists))
        reasons.update(errors)
    if counts["abstaining"] > 0.1 * counts["lists"]:
        log.warning(
            "scores: %d of %d answers read like an abstention; a generator that abstains with confidence "
            "scores useless documents high.", counts["abstaining"], counts["lists"],
        )  # fmt: skip
    return dict(counts) | {"reasons": dict(reasons)}


def main() -> None:
    settings = read_settings(__doc__, alone=NAME)
    set_up_logging()
    use_cores(settings.run.threads)
    make_scores(settings)


if __name__ == "__main__":
    run_command(main)
