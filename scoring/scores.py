"""STAGE scores: the generator judges every candidate's documents.

    python -m scoring.scores --config configs/quickstart.yaml

Reads the turns, the collection, `<run>/candidates` and `<run>/rankings`; writes `<run>/scores`: `{"id", "lists":
[{"documents", "value", "answer", "error", "rule", "key", "stats", ...}], "list_of": [index per candidate]}`.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from core.artifacts import Stage, completed, sha256
from core.inputs import data_file
from core.records import Score, Turn
from core.runtime import log, process, run_command, set_up_logging
from core.settings import Settings, read_settings
from core.stages import carry_out, shared_out
from retrieval.corpus import read_corpus
from rewriter.conversations import read_turns
from scoring.answers import abstains
from scoring.grogu import score_of

NAME = "scores"
BATCH = 32  # turns whose document lists are scored together


@dataclass(frozen=True)
class Job:
    """The distinct document lists of one turn. `questions` holds what the generator is asked beside each list."""

    turn: Turn
    lists: tuple[tuple[str, ...], ...]
    questions: tuple[str, ...]
    list_of: tuple[int, ...]

    @property
    def id(self) -> str:
        return self.turn.id


def job_of(turn: Turn, candidates: list[str], rankings: list[list[list]], question: str) -> Job:
    """Merge the candidates that ask the same of the same documents.

    Args:
        turn: the turn.
        candidates: its rewrites.
        rankings: for each, `[document, score]` in rank order.
        question: `conversation` or `rewrite` (`scoring.question`).
    """
    asked = [text if question == "rewrite" else turn.question for text in candidates]
    keys = [(tuple(doc for doc, _ in ranking), text) for ranking, text in zip(rankings, asked, strict=True)]
    distinct = list(dict.fromkeys(keys))
    return Job(
        turn, tuple(d for d, _ in distinct), tuple(q for _, q in distinct), tuple(distinct.index(key) for key in keys)
    )


def scores_stage(settings: Settings) -> Stage:
    """The stage's folder with what decides its content."""
    from core.language_model import fingerprint

    generator = asdict(settings.generator)
    for name in ("batch_tokens", "model", "adapter"):  # the models are inputs, known by what is in them
        del generator[name]
    decided = asdict(settings.scoring) | generator
    rankings, train = completed(settings.run_dir / "rankings"), sha256(data_file(settings, "train"))
    rankings.expect(inputs={"corpus": sha256(data_file(settings, "corpus"))}, settings={"k": settings.retrieval.k})
    completed(settings.run_dir / "candidates").expect(inputs={"train": train}, settings={"limit": settings.run.limit})
    inputs = {
        "rankings": rankings.identity(),
        "train": train,
        "model": fingerprint(*generator_model(settings)),
    }
    return Stage(settings.run_dir / NAME, decided, inputs, process()[0])


def generator_model(settings: Settings) -> tuple[str, str | None]:
    """The generator's model and adapter: the rewriter's own where none is named."""
    if settings.generator.model:
        return settings.generator.model, settings.generator.adapter
    return settings.rewriter.model, settings.rewriter.adapter


def make_scores(settings: Settings) -> Stage:
    """Bring the stage to its end."""

    def plan() -> list[list[Job]]:
        turns = {turn.id: turn for turn in read_turns(data_file(settings, "train"), settings.run.limit)}
        texts = {
            record["id"]: [candidate["text"] for candidate in record["candidates"]]
            for record in completed(settings.run_dir / "candidates").records()
        }
        jobs = [
            job_of(turns[record["id"]], texts[record["id"]], record["rankings"], settings.scoring.question)
            for record in completed(settings.run_dir / "rankings").records()
        ]
        return shared_out(sorted(jobs, key=lambda job: job.id), BATCH)

    def worker():
        from core.language_model import load_language_model

        lm = load_language_model(*generator_model(settings), settings.generator.dtype)
        passages = {passage.id: passage.content for passage in read_corpus(data_file(settings, "corpus"))}

        def make(jobs: list[Job]) -> list[dict[str, Any]]:
            scored = iter(
                score_lists(lm, settings, [(job, i) for job in jobs for i in range(len(job.lists))], passages)
            )
            return [
                {
                    "id": job.id,
                    "lists": [{"documents": list(docs)} | next(scored) for docs in job.lists],
                    "list_of": job.list_of,
                }
                for job in jobs
            ]

        return make

    stage = carry_out(scores_stage(settings), plan, worker, summarise, settings.run.max_failed_fraction)
    return stage


def score_lists(
    lm, settings: Settings, wanted: list[tuple[Job, int]], passages: dict[str, str]
) -> list[dict[str, Any]]:
    """Score document lists with the reward of the settings; one JSON-ready record each, in order."""
    from scoring.generator import Reading, answer_all

    rule = settings.scoring
    readings = [
        Reading.of(
            () if rule.question == "rewrite" else job.turn.history,
            job.questions[i],
            [passages[doc] for doc in job.lists[i]],
        )
        for job, i in wanted
    ]
    answered = answer_all(lm, readings, settings.generator.max_new_tokens, settings.generator.batch_tokens)
    made = []
    for (job, i), given in zip(wanted, answered, strict=True):
        if not job.lists[i]:
            score = Score(None, given.answer, error="no documents retrieved")
        elif given.cut == len(job.lists[i]):
            score = Score(None, given.answer, error="no document fits the generator's context")
        else:
            score = score_of(
                given.stats, given.answer, rule.reward, rule.alpha, rule.fallback, rule.fallback_by, rule.log_ppl
            )
        notes = {"abstains": abstains(given.answer), "cut": given.cut, "ended": given.ended}
        made.append({k: v for k, v in asdict(score).items() if v is not None or k == "value"} | notes)
    return made


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
        counts.update(fallback=sum(scored["rule"] == "fallback" for scored in lists))
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
    make_scores(settings)


if __name__ == "__main__":
    run_command(main)
