"""Compute rewards of document lists, and load the models that they need."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite

from core.language_model import LanguageModel, check_room, read_config
from core.model_spec import ModelSpec
from core.records import GenerationInput, RewardInput, Score, Turn
from core.scoring_settings import RewardSettings, ScoringSettings
from core.settings import GeneratorSettings
from scoring.batch import NO_DOCUMENTS, NOT_FINITE, QUESTION_TOO_LONG, Batch, Entailment
from scoring.entailment import load_entailment
from scoring.generator import Generator
from scoring.registry import REWARDS, check_labels, component_rewards, needs_entailment, needs_generator


@dataclass
class Scorer:
    """Computes rewards of document lists.

    Args:
        generator: the generator; None if no reward calls it.
        scoring: the `scoring` settings.
        entailment: the entailment classifier of Delta-SePer.
        seed: seed of the answers that Delta-SePer samples.
    """

    generator: Generator | None
    scoring: RewardSettings
    entailment: Entailment | None = None
    seed: int = 0

    def scores(self, items: Sequence[RewardInput], names: Sequence[str]) -> list[dict[str, Score]]:
        """Compute rewards of document lists.

        Args:
            items: document lists; duplicates are computed once.
            names: rewards, keys of `REWARDS`.

        Returns:
            For each item, name -> score. A score without a value has an `error`.
        """
        errors = self._input_errors([item.generation_input for item in items])
        valid = [item for item, error in zip(items, errors, strict=True) if not error]
        batch = Batch(valid, self.generator, self.scoring, self.entailment, self.seed)
        columns = {name: map(reject_non_finite, REWARDS[name].scores(batch) if valid else []) for name in names}
        return [
            {name: Score(error=error) if error else next(column) for name, column in columns.items()}
            for error in errors
        ]

    def _input_errors(self, inputs: Sequence[GenerationInput]) -> list[str]:
        """For each list, why it cannot be scored; empty if it can."""
        too_long: set[GenerationInput] = set()
        if self.generator is not None:
            room, context = self.generator.max_new_tokens, self.generator.lm.context
            prompts = self.generator.prompts([item.without_documents for item in inputs], room)
            too_long = {item for item, (ids, _) in prompts.items() if len(ids) + room > context}

        def error_of(item: GenerationInput) -> str:
            if not item.documents:
                return NO_DOCUMENTS
            return QUESTION_TOO_LONG if item.without_documents in too_long else ""

        return [error_of(item) for item in inputs]


def reject_non_finite(score: Score) -> Score:
    """Replace a value that is infinite or not a number by an error."""
    if score.value is None or isfinite(score.value):
        return score
    return replace(score, value=None, error=NOT_FINITE, no_res=())


def build_scorer(
    model: ModelSpec,
    scoring: ScoringSettings,
    limits: GeneratorSettings,
    rewards: Sequence[str],
    seed: int,
    lm: LanguageModel | None = None,
) -> Scorer:
    """Build a scorer and load the models that the rewards need; `lm` is the generator if it is already loaded.

    Raises:
        InputError: `max_new_tokens` leaves no room for a prompt in the context, or a model cannot be loaded.
    """
    generator = entailment = None
    if needs_generator(rewards):
        lm = lm or model.load()
        check_room(lm, limits.max_new_tokens, "generator.max_new_tokens")
        generator = Generator.of(lm, limits)
    if needs_entailment(rewards):
        check_room(generator.lm, scoring.sample_tokens, "scoring.sample_tokens")
        entailment = load_entailment(scoring.entailment, limits.batch_tokens)
    return Scorer(generator, scoring, entailment, seed)


def check_scoring(
    turns: Sequence[Turn], scoring: ScoringSettings, generator: str, key: str = "generator.model"
) -> None:
    """Check that the training turns have the labels of the reward and that its models can be read.

    Raises:
        InputError: turns lack a label, or a model cannot be read; names the field, or the model and its setting (`key`
            for the generator).
    """
    check_labels(turns, scoring, "`data.train`")
    rewards = component_rewards(scoring)
    if needs_generator(rewards):
        read_config(key, generator)
    if needs_entailment(rewards) and scoring.entailment != "exact":
        read_config("scoring.entailment", scoring.entailment, "; `exact` needs no model")
