"""Every reward by name: which labels it needs, which passes of the generator, and its value for a document list."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, pstdev

import torch

from core.batches import each_batch
from core.chat import reply_ids
from core.decoding import decode
from core.language_model import LanguageModel
from core.records import Score
from core.settings import ScoringSettings
from rewriter.sampling import noise_of, sampler
from scoring import grogu, seper
from scoring.abstention import no_res_probs
from scoring.answers import abstains
from scoring.entailment import Entailment
from scoring.generator import Reading, answer_all, prompts_of, read_again
from scoring.references import answer_logprob, reciprocal_rank
from scoring.udcg import udcg

TOO_LONG = "a document does not fit the generator's context"
TOO_LONG_TOGETHER = "a document with a reference answer does not fit the generator's context"
NONE_FITS = "no document fits the generator's context"


@dataclass(frozen=True)
class Item:
    """One document list to judge.

    Args:
        reading: the question in its conversation, and the documents in rank order.
        relevant: for each document whether it holds the answer; None where that is not known.
        answers: reference answers.
        scores: the retriever's score of each document.
    """

    reading: Reading
    relevant: tuple[bool, ...] | None = None
    answers: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()


@dataclass
class Judge:
    """Computes rewards.

    Args:
        lm: the generator; None when no reward needs one (`reciprocal_rank`).
        rule: the `scoring` settings.
        max_new_tokens: longest answer.
        batch_tokens: tokens per batch.
        entailment: the judge of Delta-SePer.
        seed: of the answers that Delta-SePer samples.
    """

    lm: LanguageModel | None
    rule: ScoringSettings
    max_new_tokens: int
    batch_tokens: int
    entailment: Entailment | None = None
    seed: int = 0
    _believed: dict[Reading, list[seper.Sampled]] = field(default_factory=dict)
    _cut: dict[Reading, int] = field(default_factory=dict)

    def scores(self, items: Sequence[Item], names: Sequence[str]) -> list[dict[str, Score]]:
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

    def _unusable(self, readings: Sequence[Reading]) -> list[str]:
        """Why each list cannot be judged; empty where it can."""
        bare = [Reading(reading.history, reading.question, ()) for reading in readings]
        distinct, long = list(dict.fromkeys(bare)), set()
        if self.lm is not None:
            prompts = prompts_of(self.lm, distinct, self.max_new_tokens)
            room = self.lm.context - self.max_new_tokens
            long = {reading for reading, (ids, _) in zip(distinct, prompts, strict=True) if len(ids) > room}
        return [
            "no documents retrieved" if not reading.documents
            else "the question does not fit the generator's context" if question in long
            else ""
            for reading, question in zip(readings, bare, strict=True)
        ]  # fmt: skip

    def _grogu(self, items: Sequence[Item], names: Sequence[str]) -> dict[str, list[Score]]:
        rule = self.rule
        answered = answer_all(self.lm, [item.reading for item in items], self.max_new_tokens, self.batch_tokens)
        made: dict[str, list[Score]] = {name: [] for name in names}
        for item, given in zip(items, answered, strict=True):
            notes = {"abstains": abstains(given.answer), "cut": given.cut, "ended": given.ended}
            for name in names:
                if given.cut == len(item.reading.documents):
                    score = Score(None, given.answer, error=NONE_FITS)
                else:
                    score = grogu.score_of(
                        given.stats, given.answer, name, rule.alpha, rule.fallback, rule.fallback_by, rule.log_ppl
                    )
                made[name].append(replace(score, **notes))
        return made

    def _udcg(self, items: Sequence[Item]) -> list[Score]:
        rule = self.rule
        alone = [
            Reading(item.reading.history, item.reading.question, (document,))
            for item in items
            for document in item.reading.documents
        ]
        probabilities = iter(no_res_probs(self.lm, alone, self.batch_tokens, rule.abstention))
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

    def _reciprocal_rank(self, items: Sequence[Item]) -> list[Score]:
        return [
            Score(None, error="no relevance labels")
            if item.relevant is None
            else Score(reciprocal_rank(item.relevant))
            for item in items
        ]

    def _answer_logprob(self, items: Sequence[Item]) -> list[Score]:
        """The best over the references; each (question, document, reference) is read once."""
        wanted = [
            (Reading(item.reading.history, item.reading.question, (document,)), answer)
            for item in items
            for document in item.reading.documents
            for answer in item.answers
        ]
        distinct = list(dict.fromkeys(wanted))
        replies = [(reading, tuple(reply_ids(self.lm, answer))) for reading, answer in distinct]
        outputs = read_again(self.lm, replies, self.max_new_tokens, self.batch_tokens)
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

    def _delta_seper(self, items: Sequence[Item], measure) -> list[Score]:
        bare = [Reading(item.reading.history, item.reading.question, ()) for item in items]
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

    def _believe(self, readings: Sequence[Reading]) -> None:
        """Sample the answers of readings that are not known yet; what a sample says follows from seed and reading."""
        rule = self.rule
        new = [reading for reading in dict.fromkeys(readings) if reading not in self._believed]
        made = prompts_of(self.lm, new, rule.sample_tokens)
        prompts = [ids for ids, _ in made]
        self._cut |= {reading: cut for reading, (_, cut) in zip(new, made, strict=True)}

        def sample(batch: list[int]) -> None:
            noise = torch.cat([noise_of(self.seed, repr(new[i]), rule.samples, rule.sample_tokens) for i in batch])
            pick = sampler(noise.to(self.lm.device), 1.0, 1.0)
            outputs = decode(self.lm, [prompts[i] for i in batch], rule.sample_tokens, pick, rule.samples)
            for i, samples in zip(batch, outputs, strict=True):
                self._believed[new[i]] = [
                    seper.Sampled(
                        self.lm.tokenizer.decode(one.ids, skip_special_tokens=True).strip(),
                        math.fsum(one.logprobs) / len(one.logprobs) if one.logprobs else one.end_logprob,
                    )
                    for one in samples
                ]

        lengths = [rule.samples * (len(prompt) + rule.sample_tokens) for prompt in prompts]
        each_batch(self.lm, lengths, self.batch_tokens, sample)


def finite(score: Score) -> Score:
    """The score, or the reason why there is none where its value is infinite or not a number."""
    ok = score.value is None or math.isfinite(score.value)
    return score if ok else replace(score, value=None, error=grogu.NO_NUMBER)


def likeliest(answers: Sequence[seper.Sampled]) -> str:
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
