"""Computing rewards: the passes of the generator that each needs, and its value for each document list."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from transformers import AutoConfig

from core.chat import completion_ids
from core.errors import InputError, first_line
from core.gguf import model_folder
from core.language_model import LanguageModel, check_room
from core.model_spec import ModelSpec
from core.records import GeneratedAnswer, GenerationInput, RewardInput, Score, Turn
from core.scoring_settings import ScoringSettings
from core.settings import GeneratorSettings
from scoring import grogu, seper
from scoring.abstention import abstention_probabilities
from scoring.answer_samples import AnswerSampler
from scoring.answers import abstains
from scoring.baselines import answer_logprob, reciprocal_rank
from scoring.entailment import Entailment, load_entailment
from scoring.generator import Generator
from scoring.registry import check_labels, component_rewards, needs_seper
from scoring.udcg import udcg

NO_DOCUMENTS = "no documents retrieved"
QUESTION_TOO_LONG = "the question does not fit the generator's context"
DOCUMENT_TOO_LONG = "a document does not fit the generator's context"
REFERENCE_TOO_LONG = "a document with a reference answer does not fit the generator's context"
NO_DOCUMENT_FITS = "no document fits the generator's context"
NO_LABELS = "no relevance labels"
NO_REFERENCES = "no reference answers"


@dataclass
class Scorer:
    """Computes rewards of document lists.

    Args:
        generator: None when no reward needs one (`reciprocal_rank`).
        rule: the `scoring` settings.
        entailment: the judge of Delta-SePer.
        seed: of the answers that Delta-SePer samples.
    """

    generator: Generator | None
    rule: ScoringSettings
    entailment: Entailment | None = None
    seed: int = 0

    def scores(self, items: Sequence[RewardInput], names: Sequence[str]) -> list[dict[str, Score]]:
        """The rewards of document lists.

        Args:
            items: duplicates share their passes.
            names: of `REWARDS`.

        Returns:
            For each item, name -> score; without a value, but with the reason, where there is none.
        """
        errors = self._input_errors([item.generation_input for item in items])
        usable = [item for item, error in zip(items, errors, strict=True) if not error]
        columns = self._columns(usable, names) if usable else {name: [] for name in names}
        rows = iter(zip(*(map(finite, columns[name]) for name in names), strict=True))
        return [
            dict.fromkeys(names, Score(error=error)) if error else dict(zip(names, next(rows), strict=True))
            for error in errors
        ]

    def _columns(self, items: Sequence[RewardInput], names: Sequence[str]) -> dict[str, list[Score]]:
        functions = {
            "udcg": self._udcg,
            "reciprocal_rank": self._reciprocal_rank,
            "answer_logprob": self._answer_logprob,
            "delta_seper_soft": self._delta_seper_soft,
            "delta_seper_hard": self._delta_seper_hard,
        }
        columns = {name: functions[name](items) for name in names if name in functions}
        return columns | self._grogu(items, [name for name in names if name in grogu.REWARDS])

    def _input_errors(self, inputs: Sequence[GenerationInput]) -> list[str]:
        """Why each list cannot be scored; empty where it can."""
        too_long: set[GenerationInput] = set()
        if self.generator is not None:
            questions = list(dict.fromkeys(each.without_documents for each in inputs))
            room, context = self.generator.max_new_tokens, self.generator.lm.context
            prompts = self.generator.prompts(questions, room)
            too_long = {each for each, (ids, _) in zip(questions, prompts, strict=True) if len(ids) + room > context}
        return [
            NO_DOCUMENTS if not each.documents else QUESTION_TOO_LONG if each.without_documents in too_long else ""
            for each in inputs
        ]

    # ------------------------------------------------------------------ GROGU

    def _grogu(self, items: Sequence[RewardInput], names: Sequence[str]) -> dict[str, list[Score]]:
        """The GROGU rewards, all from the same answers."""
        columns: dict[str, list[Score]] = {name: [] for name in names}
        if not names:
            return columns
        rule = self.rule
        for item, (source, answer) in zip(items, self._answers(items), strict=True):
            for name in names:
                if answer.cut == len(item.generation_input.documents):
                    score = Score(answer=answer.answer, error=NO_DOCUMENT_FITS)
                else:
                    score = grogu.score_of(
                        answer.stats, answer.answer, name, rule.alpha, rule.fallback, rule.fallback_by, rule.log_ppl
                    )
                abstaining = source == "generated" and abstains(answer.answer)
                score = replace(score, answer_source=source, abstains=abstaining, cut=answer.cut, ended=answer.ended)
                columns[name].append(score)
        return columns

    def _answers(self, items: Sequence[RewardInput]) -> list[tuple[str, GeneratedAnswer]]:
        """The answer whose tokens are scored, for each item, and its source: `generated` or `logged`."""
        reply_ids: dict[str, tuple[int, ...]] = {}
        if self.rule.answer == "logged":
            replies = {item.reply for item in items if item.reply.strip() and not abstains(item.reply)}
            reply_ids = {
                reply: tuple(completion_ids(self.generator.lm, reply)[: self.rule.reply_tokens]) for reply in replies
            }
        sources = ["logged" if reply_ids.get(item.reply) else "generated" for item in items]
        logged = [item for item, source in zip(items, sources, strict=True) if source == "logged"]
        generated = [item for item, source in zip(items, sources, strict=True) if source == "generated"]
        answers = {
            "logged": iter(
                self.generator.logged_answers(
                    [item.generation_input for item in logged], [reply_ids[item.reply] for item in logged]
                )
            ),
            "generated": iter(self.generator.answers([item.generation_input for item in generated])),
        }
        return [(source, next(answers[source])) for source in sources]

    # ------------------------------------------------------------------ rewards that need labels

    def _udcg(self, items: Sequence[RewardInput]) -> list[Score]:
        single = [each for item in items for each in item.generation_input.single_documents]
        probabilities = iter(abstention_probabilities(self.generator, single, self.rule.abstention))
        scores = []
        for item in items:
            no_res = [next(probabilities) for _ in item.generation_input.documents]
            if item.relevant is None:
                scores.append(Score(error=NO_LABELS))
            elif None in no_res:
                scores.append(Score(error=DOCUMENT_TOO_LONG))
            elif not all(map(math.isfinite, no_res)):
                scores.append(Score(error=grogu.NOT_FINITE))
            else:
                weights = (self.rule.relevant_weight, self.rule.irrelevant_weight)
                value = udcg(no_res, item.relevant, *weights, self.rule.normalise)
                scores.append(Score(value, no_res=tuple(no_res)))
        return scores

    def _reciprocal_rank(self, items: Sequence[RewardInput]) -> list[Score]:
        return [
            Score(error=NO_LABELS) if item.relevant is None else Score(reciprocal_rank(item.relevant))
            for item in items
        ]

    def _answer_logprob(self, items: Sequence[RewardInput]) -> list[Score]:
        """The best over the reference answers; each (question, document, reference) is read once."""
        references = list(
            dict.fromkeys(
                (each, answer)
                for item in items
                for each in item.generation_input.single_documents
                for answer in item.answers
            )
        )
        tasks = [(each, tuple(completion_ids(self.generator.lm, answer))) for each, answer in references]
        completions = self.generator.score(tasks, self.generator.max_new_tokens)
        logprobs = {
            reference: None if completion is None else math.fsum(completion.logprobs)
            for reference, completion in zip(references, completions, strict=True)
        }
        scores = []
        for item in items:
            documents = item.generation_input.single_documents
            table = [[logprobs[each, answer] for each in documents] for answer in item.answers]
            values = [value for row in table for value in row]
            if not item.answers:
                scores.append(Score(error=NO_REFERENCES))
            elif None in values:
                scores.append(Score(error=REFERENCE_TOO_LONG))
            elif any(map(math.isnan, values)):
                scores.append(Score(error=grogu.NOT_FINITE))
            else:
                retrieval_scores = item.scores or (0.0,) * len(documents)
                scores.append(Score(max(answer_logprob(retrieval_scores, row) for row in table)))
        return scores

    # ------------------------------------------------------------------ Delta-SePer

    @cached_property
    def _sampler(self) -> AnswerSampler:
        return AnswerSampler(self.generator, self.rule.samples, self.rule.sample_tokens, self.seed)

    def _delta_seper_soft(self, items: Sequence[RewardInput]) -> list[Score]:
        return self._delta_seper(items, seper.soft, kernel=self.rule.kernel)

    def _delta_seper_hard(self, items: Sequence[RewardInput]) -> list[Score]:
        return self._delta_seper(items, seper.hard, loose=self.rule.clusters == "loose")

    def _delta_seper(self, items: Sequence[RewardInput], measure, **options) -> list[Score]:
        """The belief on the references with documents, less that without them."""
        with_references = [item.generation_input for item in items if item.answers]
        self._sampler.sample(each for pair in ((i, i.without_documents) for i in with_references) for each in pair)
        scores = []
        for item in items:
            grounded, ungrounded = item.generation_input, item.generation_input.without_documents
            if not item.answers:
                scores.append(Score(error=NO_REFERENCES))
            elif self._sampler.cut(grounded) == len(grounded.documents):
                scores.append(Score(error=NO_DOCUMENT_FITS))
            else:
                with_documents, without = (
                    measure(
                        self._sampler.answers(each), item.answers, each.question, self.entailment,
                        aggregate=self.rule.aggregate, **options,
                    )
                    for each in (grounded, ungrounded)
                )  # fmt: skip
                likeliest = max(self._sampler.answers(grounded), key=lambda answer: answer.logprob)
                scores.append(Score(with_documents - without, likeliest.text, cut=self._sampler.cut(grounded)))
        return scores


def finite(score: Score) -> Score:
    """The score, or the reason why there is none where its value is infinite or not a number."""
    is_finite = score.value is None or math.isfinite(score.value)
    return score if is_finite else replace(score, value=None, error=grogu.NOT_FINITE)


def build_scorer(
    model: ModelSpec,
    scoring: ScoringSettings,
    options: GeneratorSettings,
    rewards: Sequence[str],
    seed: int,
    lm: LanguageModel | None = None,
) -> Scorer:
    """A scorer for some rewards, with the models that they need.

    Args:
        model: the generator.
        scoring: options of the rewards.
        options: limits on the outputs and batches of the generator.
        rewards: names.
        seed: of sampled answers.
        lm: the generator where it is loaded already.

    Raises:
        InputError: an output is as long as the generator's context, or a model cannot be loaded.
    """
    generator = entailment = None
    if set(rewards) - {"reciprocal_rank"}:
        lm = lm or model.load()
        check_room(lm, options.max_new_tokens, "generator.max_new_tokens")
        generator = Generator.of(lm, options)
    if needs_seper(rewards):
        check_room(generator.lm, scoring.sample_tokens, "scoring.sample_tokens")
        entailment = load_entailment(scoring.entailment, options.batch_tokens)
    return Scorer(generator, scoring, entailment, seed)


def check_scoring(turns: Sequence[Turn], scoring: ScoringSettings, generator: str) -> None:
    """Make sure, before anything is computed, that turns have the labels of the reward and its models can be read.

    Args:
        turns: the training turns.
        scoring: the reward.
        generator: name of the model.

    Raises:
        InputError: names the field that turns lack, or the model that cannot be read.
    """
    check_labels(turns, scoring, "`data.train`")
    check_model("generator.model", model_folder(generator))
    if needs_seper(component_rewards(scoring)) and scoring.entailment != "exact":
        check_model("scoring.entailment", scoring.entailment, "; `exact` needs no model")


def check_model(key: str, name: str, hint: str = "") -> None:
    """Make sure that the configuration of a model can be read.

    Raises:
        InputError: it cannot; names the setting `key`, the model, the cause and a `hint`.
    """
    try:
        AutoConfig.from_pretrained(name)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"`{key}`: {name} cannot be read: {first_line(error)}{hint}") from error
