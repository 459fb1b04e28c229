"""Score document lists with each reward, for the command `scoring.validity`.

An interrupted check resumes: the stage `scores` in the output folder keeps the scored questions.
"""

import hashlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace

from core.artifacts import write_atomic, write_json
from core.cli import read_settings
from core.distributed import lock_folder, process
from core.errors import InputError
from core.json_records import to_json_line
from core.model_spec import ModelSpec, generator_spec
from core.progress import log
from core.records import CheckedQuestion, Score
from core.scoring_settings import ScoringSettings
from core.settings import GeneratorSettings
from core.stage_runner import run_stage
from core.stages import Stage
from scoring import grogu
from scoring.items import read_items
from scoring.registry import REWARDS, needs_entailment
from scoring.scorer import Scorer, build_scorer
from scoring.validity import ValidityFlags
from scoring.validity_cases import Case, build_cases, cases_of_items, labelled_turns
from scoring.validity_report import plot_of, table_of, validity_results

BATCH_SIZE = 8  # questions scored and saved together


def check_generator(flags: ValidityFlags, words: Sequence[str]) -> None:
    """Score the lists, write the files and print the table; `words` of the command line override settings.

    Raises:
        InputError: an input is invalid, or a reward needs answers that are missing.
    """
    if flags.input:
        items = read_items(flags.input, "validity")[: flags.limit]
        cases, scoring, generator = cases_of_items(items, flags.seed), ScoringSettings(), GeneratorSettings()
        model = ModelSpec(flags.model)
    else:
        settings = read_settings("", ["--config", str(flags.config), *words])
        scoring, generator = settings.scoring, settings.generator
        model = generator_spec(generator, settings.rewriter)
        cases = build_cases(*labelled_turns(settings, flags.limit), settings, flags.seed)
    lock_folder(flags.output, "--output")
    if flags.entailment:
        scoring = replace(scoring, entailment=flags.entailment)
    names = rewards_to_check(flags.rewards, cases)
    stage = score_cases(cases, names, model, scoring, generator, flags)
    if process()[0] == 0:
        report = {"model": model.name, "settings": asdict(scoring)} | validity_results(cases, list(stage), names)
        table = table_of(report)
        write_json(flags.output / "validity.json", report)
        write_atomic(flags.output / "validity.md", table)
        write_atomic(flags.output / "validity.svg", plot_of(report))
        log.info("\n%s\nvalidity -> %s", table, flags.output)


def rewards_to_check(requested: Sequence[str], cases: Sequence[Case]) -> list[str]:
    """The rewards of `--rewards`; by default all except Delta-SePer whose labels the cases have.

    Raises:
        InputError: a reward of `--rewards` needs answers that are missing.
    """
    lists = [item for case in cases for item in case.lists.values()]
    without_answers = sum(not all(item.answers for item in case.lists.values()) for case in cases)
    names = list(requested) or [name for name in REWARDS if not needs_entailment([name])]
    if not requested and all(item.reply for item in lists):
        names.insert(1, "key_entropy@logged")
    unusable = [name for name in names if without_answers and REWARDS[name.partition("@")[0]].needs == "answers"]
    if unusable and requested:
        raise InputError(
            f"`--rewards {unusable[0]}` needs `answers`; {without_answers} of {len(cases)} questions have none."
        )
    if unusable:
        log.warning(
            "skipped %s: %d of %d questions have no `answers`", ", ".join(unusable), without_answers, len(cases)
        )
    return [name for name in names if name not in unusable]


def score_cases(
    cases: Sequence[Case],
    names: Sequence[str],
    model: ModelSpec,
    scoring: ScoringSettings,
    generator: GeneratorSettings,
    flags: ValidityFlags,
) -> Stage:
    """Score every list with each reward, in the stage `scores` of the output folder: a `CheckedQuestion` per case.

    A GROGU reward scores the generated answer, `key_entropy@logged` the logged one.
    """
    settings = asdict(scoring) | generator.limits | {"dtype": generator.dtype, "rewards": names, "seed": flags.seed}
    lists = hashlib.sha256("".join(map(to_json_line, cases)).encode()).hexdigest()
    inputs = {"lists": lists, "model": model.fingerprint}
    remedy = f"Use another `--output`, or delete {flags.output / 'scores'}."
    stage = Stage(flags.output, "scores", settings, inputs, CheckedQuestion, remedy)
    # `key_entropy` generates the answers if none of the checked rewards does.
    answering = next((name for name in names if name in grogu.REWARDS), "key_entropy")
    rewards = [name.partition("@")[0] for name in (*names, answering)]

    def load_worker():
        scorer = build_scorer(model, scoring, generator, rewards, flags.seed)
        return lambda batch: check_questions(batch, scorer, names, answering)

    def summarize(records: Iterable[CheckedQuestion]) -> dict[str, int]:
        return {"total": len(cases), "lists": sum(len(record.answers) for record in records)}

    return run_stage(stage, cases, BATCH_SIZE, load_worker, summarize)


def check_questions(
    cases: Sequence[Case], scorer: Scorer, names: Sequence[str], answering: str
) -> list[CheckedQuestion]:
    """Score the lists of questions with the rewards `names`; the records contain the answers of `answering`."""
    items = [item for case in cases for item in case.lists.values()]
    scores: dict[str, list[Score]] = {}
    seconds: dict[str, float] = {}
    for name in dict.fromkeys((*names, answering)):
        reward, _, answer = name.partition("@")
        started = time.monotonic()
        scoring = replace(scorer.scoring, answer=answer or "generated")
        scores[name] = [score[reward] for score in replace(scorer, scoring=scoring).scores(items, [reward])]
        seconds[name] = (time.monotonic() - started) / len(items)
    positions = iter(range(len(items)))
    records = []
    for case in cases:
        position = {name: next(positions) for name in case.lists}
        answers = {name: scores[answering][i].answer for name, i in position.items()}
        values = {name: {reward: scores[reward][i].value for reward in names} for name, i in position.items()}
        records.append(CheckedQuestion(case.id, answers, values, {name: seconds[name] for name in names}))
    return records
