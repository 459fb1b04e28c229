"""The input of a reward: document lists that are scored together, and the generator's answers to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from core.records import GeneratedAnswer, GenerationInput, RewardInput, SampledAnswer
from scoring.answers import abstains

if TYPE_CHECKING:  # rewards are also imported without torch
    from scoring.scorer import Scorer

NO_DOCUMENTS = "no documents retrieved"
QUESTION_TOO_LONG = "the question does not fit the generator's context"
DOCUMENT_TOO_LONG = "a document does not fit the generator's context"
REFERENCE_TOO_LONG = "a document with a reference answer does not fit the generator's context"
NO_DOCUMENT_FITS = "no document fits the generator's context"
NO_LABELS = "no relevance labels"
NO_REFERENCES = "no reference answers"
NOT_FINITE = "the model returned a value that is infinite or not a number"


@dataclass
class Batch:
    """Document lists that are scored together.

    Args:
        items: each with at least one document, and a question that fits the generator's context.
        scorer: the generator, the `scoring` settings as `rule`, and the entailment classifier of Delta-SePer.
    """

    items: Sequence[RewardInput]
    scorer: Scorer

    @cached_property
    def answers(self) -> list[tuple[str, GeneratedAnswer]]:
        """For each item, the source (`generated` or `logged`) and the answer whose tokens GROGU scores."""
        generator, rule = self.scorer.generator, self.scorer.rule
        reply_ids: dict[str, tuple[int, ...]] = {}
        if rule.answer == "logged":
            replies = {item.reply for item in self.items if item.reply.strip() and not abstains(item.reply)}
            reply_ids = {reply: generator.reply_ids(reply)[: rule.reply_tokens] for reply in replies}
        sources = ["logged" if reply_ids.get(item.reply) else "generated" for item in self.items]
        inputs = [(item.generation_input, reply_ids.get(item.reply)) for item in self.items]
        logged = iter(generator.logged_answers([(item, ids) for item, ids in inputs if ids]))
        generated = iter(generator.answers([item for item, ids in inputs if not ids]))
        return [(source, next(logged if source == "logged" else generated)) for source in sources]

    @cached_property
    def samples(self) -> dict[GenerationInput, tuple[list[SampledAnswer], int]]:
        """Sampled answers for items with reference answers, with and without documents.

        Each value also contains the number of documents that did not fit.
        """
        grounded = [item.generation_input for item in self.items if item.answers]
        inputs = list(dict.fromkeys(item for full in grounded for item in (full, full.without_documents)))
        if not inputs:
            return {}
        rule = self.scorer.rule
        sampled = self.scorer.generator.samples(inputs, rule.samples, rule.sample_tokens, self.scorer.seed)
        return dict(zip(inputs, sampled, strict=True))
