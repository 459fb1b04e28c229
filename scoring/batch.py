"""The input of a reward: document lists that are scored together, and the generator's answers to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from core.records import GeneratedAnswer, GenerationInput, RewardInput, SampledAnswer
from core.scoring_settings import RewardSettings
from scoring.answers import abstains

if TYPE_CHECKING:  # rewards are also imported without torch
    from scoring.generator import Generator

NO_DOCUMENTS = "no documents retrieved"
QUESTION_TOO_LONG = "the question does not fit the generator's context"
DOCUMENT_TOO_LONG = "a document does not fit the generator's context"
REFERENCE_TOO_LONG = "a document with a reference answer does not fit the generator's context"
NO_DOCUMENT_FITS = "no document fits the generator's context"
NO_LABELS = "no relevance labels"
NO_REFERENCES = "no reference answers"
NOT_FINITE = "the model returned a value that is infinite or not a number"


@dataclass(frozen=True)
class NliResult:
    """The most likely of `contradiction`, `neutral` and `entailment`, and the probability of entailment."""

    label: str
    entails: float


class Entailment(Protocol):
    """A classifier of (premise, hypothesis) pairs."""

    def judge(self, pairs: Sequence[tuple[str, str]]) -> list[NliResult]: ...


@dataclass
class Batch:
    """Document lists that are scored together.

    Args:
        items: each with at least one document, and a question that fits the generator's context.
        generator: the generator; None if no reward calls it.
        scoring: the `scoring` settings.
        entailment: the entailment model; None if no reward calls it.
        seed: seed of sampled answers.
    """

    items: Sequence[RewardInput]
    generator: Generator | None
    scoring: RewardSettings
    entailment: Entailment | None
    seed: int

    @cached_property
    def answers(self) -> list[tuple[str, GeneratedAnswer]]:
        """For each item, the source (`generated` or `logged`) and the answer whose tokens GROGU scores."""
        generator, scoring = self.generator, self.scoring
        reply_ids: dict[str, tuple[int, ...]] = {}
        if scoring.answer == "logged":
            replies = {item.reply for item in self.items if item.reply.strip() and not abstains(item.reply)}
            reply_ids = {reply: generator.reply_ids(reply)[: scoring.reply_tokens] for reply in replies}
        sources = ["logged" if reply_ids.get(item.reply) else "generated" for item in self.items]
        inputs = [(item.generation_input, reply_ids.get(item.reply)) for item in self.items]
        logged = iter(generator.logged_answers([(item, ids) for item, ids in inputs if ids]))
        generated = iter(generator.answers([item for item, ids in inputs if not ids]))
        return [(source, next(logged if source == "logged" else generated)) for source in sources]

    @cached_property
    def samples(self) -> dict[GenerationInput, tuple[list[SampledAnswer], int]]:
        """For each item with reference answers, its input with and without documents -> (sampled answers, number of
        documents that did not fit)."""
        grounded = [item.generation_input for item in self.items if item.answers]
        inputs = list(dict.fromkeys(item for full in grounded for item in (full, full.without_documents)))
        if not inputs:
            return {}
        sampled = self.generator.samples(inputs, self.scoring.samples, self.scoring.sample_tokens, self.seed)
        return dict(zip(inputs, sampled, strict=True))
