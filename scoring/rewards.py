"""Every reward by name: which labels it needs, which passes of the generator, and its value for a document list."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, pstdev

import torch
from transformers import AutoConfig

from core.chat import completion_ids
from core.errors import InputError, first_line
from core.generation import generate, greedy
from core.gguf import model_folder
from core.language_model import check_room
from core.model_spec import ModelSpec
from core.records import GeneratedAnswer, GenerationInput, RewardInput, SampledAnswer, Score, Turn
from core.settings import GeneratorSettings, ScoringSettings
from rewriter.sampling import sampler, uniform_draws
from scoring import grogu, seper
from scoring.abstention import abstention_probabilities
from scoring.answers import abstains
from scoring.entailment import Entailment, load_entailment
from scoring.generator import Generator
from scoring.labels import check_labels, needs_seper, parts_of
from scoring.references import answer_logprob, reciprocal_rank
from scoring.udcg import udcg

TOO_LONG = "a document does not fit the generator's context"
TOO_LONG_TOGETHER = "a document with a reference answer does not fit the generator's context"
NONE_FITS = "no document fits the generator's context"


@dataclass
class Scorer:
    """Computes rewards.

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
    _believed: dict[GenerationInput, list[SampledAnswer]] = field(default_factory=dict)
    _cut: dict[GenerationInput, int] = field(default_factory=dict)

    def scores(self, items: Sequence[RewardInput], names: Sequence[str]) -> list[dict[str, Score]]:
        """The rewards of document lists.

        Args:
            items: duplicates share their passes.
            names: of `REWARDS`.

        Returns:
            For each item, name -> score; without a value, but with the reason, where there is none.
        """
        reasons = self._unusable([item.reading for item in items])
        usable = [item for item, reason in zip(items, reasons, strict=True) if not reason]
        columns: dict[str, list[Score]] = {name: [] for name in names}
        if set(names) & set(grogu.REWARDS) and usable:
            columns |= self._grogu(usable, [name for name in names if name in grogu.REWARDS])
        own = {
            "udcg": self._udcg,
            "reciprocal_rank": self._reciprocal_rank,
            "answer_logprob": self._answer_logprob,
            "delta_seper_soft": lambda some: self._delta_seper(some, seper.soft),
            "delta_seper_hard": lambda some: self._delta_seper(some, seper.hard),
        }
        columns |= {name: own[name](usable) for name in names if name in own and usable}
        rows = iter(zip(*(map(finite, columns[name]) for name in names), strict=True))
        return [
            dict.fromkeys(names, Score(None, error=reason)) if reason else dict(zip(names, next(rows), strict=True))
            for reason in reasons
        ]

    def _unusable(self, readings: Sequence[GenerationInput]) -> list[str]:
        """Why each list cannot be judged; empty where it can."""
        bare = [reading.without_documents for reading in readings]
        too_long: set[GenerationInput] = set()
        if self.generator is not None:
            distinct, room = list(dict.fromkeys(bare)), self.generator.max_new_tokens
            prompts = self.generator.prompts(distinct, room)
            context = self.generator.lm.context
            too_long = {each for each, (ids, _) in zip(distinct, prompts, strict=True) if len(ids) + room > context}
        return [
            "no documents retrieved" if not reading.documents
            else "the question does not fit the generator's context" if question in too_long
            else ""
            for reading, question in zip(readings, bare, strict=True)
        ]  # fmt: skip

    def _grogu(self, items: Sequence[RewardInput], names: Sequence[str]) -> dict[str, list[Score]]:
        rule = self.rule
        answers = self._answers(items)
        columns: dict[str, list[Score]] = {name: [] for name in names}
        for item, (source, answered) in zip(items, answers, strict=True):
            notes = {"answer_source": source, "cut": answered.cut, "ended": answered.ended}
            notes["abstains"] = source == "generated" and abstains(answered.answer)
            for name in names:
                if answered.cut == len(item.reading.documents):
                    score = Score(None, answered.answer, error=NONE_FITS)
                else:
                    score = grogu.score_of(
                        answered.stats, answered.answer, name, rule.alpha, rule.fallback, rule.fallback_by,
                        rule.log_ppl,
                    )  # fmt: skip
                columns[name].append(replace(score, **notes))
        return columns

    def _answers(self, items: Sequence[RewardInput]) -> list[tuple[str, GeneratedAnswer]]:
        """The answer whose tokens are scored, for each item, and its source: `generated` or `logged`."""
        replies: dict[str, tuple[int, ...]] = {}
        if self.rule.answer == "logged":
            usable = dict.fromkeys(item.reply for item in items if item.reply.strip() and not abstains(item.reply))
            replies = {
                reply: tuple(completion_ids(self.generator.lm, reply)[: self.rule.reply_tokens]) for reply in usable
            }
        is_logged = [bool(replies.get(item.reply)) for item in items]
        logged = [item for item, yes in zip(items, is_logged, strict=True) if yes]
        scored = iter(
            self.generator.logged_answers([item.reading for item in logged], [replies[item.reply] for item in logged])
        )
        generated = iter(
            self.generator.answers([item.reading for item, yes in zip(items, is_logged, strict=True) if not yes])
        )
        return [("logged", next(scored)) if yes else ("generated", next(generated)) for yes in is_logged]

    def _udcg(self, items: Sequence[RewardInput]) -> list[Score]:
        rule = self.rule
        alone = [
            GenerationInput(item.reading.history, item.reading.question, (document,))
            for item in items
            for document in item.reading.documents
        ]
        probabilities = iter(abstention_probabilities(self.generator, alone, rule.abstention))
        made = []
        for item in items:
            given = [next(probabilities) for _ in item.reading.documents]
            if item.relevant is None:
                made.append(Score(None, error="no relevance labels"))
            elif None in given:
                made.append(Score(None, error=TOO_LONG))
            elif not all(map(math.isfinite, given)):
                made.append(Score(None, error=grogu.NO_NUMBER))
            else:
                weights = (rule.relevant_weight, rule.irrelevant_weight)
                made.append(Score(udcg(given, item.relevant, *weights, rule.normalise), no_res=tuple(given)))
        return made

    def _reciprocal_rank(self, items: Sequence[RewardInput]) -> list[Score]:
        return [
            Score(None, error="no relevance labels")
            if item.relevant is None
            else Score(reciprocal_rank(item.relevant))
            for item in items
        ]

    def _answer_logprob(self, items: Sequence[RewardInput]) -> list[Score]:
        """The best over the references; each (question, document, reference) is read once."""
        wanted = [
            (GenerationInput(item.reading.history, item.reading.question, (document,)), answer)
            for item in items
            for document in item.reading.documents
            for answer in item.answers
        ]
        distinct = list(dict.fromkeys(wanted))
        tasks = [(reading, tuple(completion_ids(self.generator.lm, answer))) for reading, answer in distinct]
        outputs = self.generator.score(tasks, self.generator.max_new_tokens)
        known = {
            one: None if output is None else math.fsum(output.logprobs)
            for one, output in zip(distinct, outputs, strict=True)
        }
        logprobs, made = iter(known[one] for one in wanted), []
        for item in items:
            table = [[next(logprobs) for _ in item.answers] for _ in item.reading.documents]
            if not item.answers:
                made.append(Score(None, error="no reference answers"))
            elif any(None in row for row in table):
                made.append(Score(None, error=TOO_LONG_TOGETHER))
            elif any(math.isnan(value) for row in table for value in row):
                made.append(Score(None, error=grogu.NO_NUMBER))
            else:
                scores = item.scores or (0.0,) * len(table)
                made.append(Score(max(answer_logprob(scores, column) for column in zip(*table, strict=True))))
        return made

    def _delta_seper(self, items: Sequence[RewardInput], measure) -> list[Score]:
        bare = [item.reading.without_documents for item in items]
        labelled = [i for i, item in enumerate(items) if item.answers]
        self._believe([reading for i in labelled for reading in (items[i].reading, bare[i])])
        rule, made = self.rule, []
        options = {"aggregate": rule.aggregate}
        options |= {"kernel": rule.kernel} if measure is seper.soft else {"loose": rule.clusters == "loose"}
        for item, without in zip(items, bare, strict=True):
            if not item.answers:
                made.append(Score(None, error="no reference answers"))
                continue
            cut = self._cut[item.reading]
            if cut == len(item.reading.documents):
                made.append(Score(None, error=NONE_FITS))
                continue
            with_, before = (
                measure(self._believed[reading], item.answers, reading.question, self.entailment, **options)
                for reading in (item.reading, without)
            )
            made.append(Score(with_ - before, likeliest(self._believed[item.reading]), cut=cut))
        return made

    def _believe(self, readings: Sequence[GenerationInput]) -> None:
        """Sample the answers of readings that are not known yet; what a sample says follows from seed and reading."""
        rule, lm = self.rule, self.generator.lm
        new = [reading for reading in dict.fromkeys(readings) if reading not in self._believed]
        prompts = self.generator.prompts(new, rule.sample_tokens)
        self._cut |= {reading: cut for reading, (_, cut) in zip(new, prompts, strict=True)}
        noise = [uniform_draws(self.seed, repr(reading), rule.samples, rule.sample_tokens) for reading in new]
        outputs = generate(
            lm,
            [ids for ids, _ in prompts],
            rule.sample_tokens,
            self.generator.batch_tokens,
            sampler(torch.cat(noise).to(lm.device), 1.0, 1.0) if noise else greedy,
            rule.samples,
        )
        for reading, samples in zip(new, outputs, strict=True):
            self._believed[reading] = [
                SampledAnswer(
                    lm.tokenizer.decode(sample.ids, skip_special_tokens=True).strip(),
                    math.fsum(sample.logprobs) / len(sample.logprobs) if sample.logprobs else sample.end_logprob,
                )
                for sample in samples
            ]


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
    if needs_seper(parts_of(scoring)) and scoring.entailment != "exact":
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


def build_scorer(
    model: ModelSpec, scoring: ScoringSettings, options: GeneratorSettings, rewards: Sequence[str], seed: int
) -> Scorer:
    """A scorer for some rewards; it loads the models that they need.

    Args:
        model: the generator.
        scoring: options of the rewards.
        options: limits on the outputs and batches of the generator.
        rewards: names.
        seed: of sampled answers.

    Raises:
        InputError: an output is as long as the generator's context, or a model cannot be loaded.
    """
    generator = entailment = None
    if set(rewards) - {"reciprocal_rank"}:
        lm = model.load()
        check_room(lm, options.max_new_tokens, "generator.max_new_tokens")
        generator = Generator.of(lm, options)
    if needs_seper(rewards):
        check_room(generator.lm, scoring.sample_tokens, "scoring.sample_tokens")
        entailment = load_entailment(scoring.entailment, options.batch_tokens)
    return Scorer(generator, scoring, entailment, seed)


def finite(score: Score) -> Score:
    """The score, or the reason why there is none where its value is infinite or not a number."""
    ok = score.value is None or math.isfinite(score.value)
    return score if ok else replace(score, value=None, error=grogu.NO_NUMBER)


def likeliest(answers: Sequence[SampledAnswer]) -> str:
    return max(answers, key=lambda answer: answer.logprob).text


def standardised(values: Sequence[float | None]) -> list[float | None]:
    """Values of one turn's lists with mean 0 and standard deviation 1; all 0 where they are equal."""
    known = [value for value in values if value is not None]
    if not known:
        return list(values)
    middle, spread = fmean(known), pstdev(known)
    return [None if value is None else (value - middle) / spread if spread else 0.0 for value in values]


def weighted(parts: Sequence[dict[str, float | None]], weights: dict[str, float]) -> list[float | None]:
    """The `weighted` reward of one turn's lists: the weighted sum of standardised rewards.

    Args:
        parts: for each list, reward -> value.
        weights: reward -> weight.

    Returns:
        One value per list; None where a reward has none.
    """
    columns = {name: standardised([part[name] for part in parts]) for name in weights}
    rows = [{name: columns[name][i] for name in weights} for i in range(len(parts))]
    return [
        None if None in row.values() else math.fsum(weights[name] * value for name, value in row.items())
        for row in rows
    ]
