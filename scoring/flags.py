"""Flags of the commands `scoring.utility` and `scoring.validity`."""

from dataclasses import dataclass, field
from pathlib import Path

from core.errors import InputError
from core.schema import Positive, Seed, Validated
from core.scoring_settings import RewardSettings
from core.settings import ModelSettings
from scoring.registry import check_reward_name


@dataclass(kw_only=True)
class UtilityFlags(RewardSettings, ModelSettings):
    """Flags of `scoring.utility`.

    Args:
        model: folder, Hub id or `.gguf` file of the generator; also the key of its results in the output.
        adapter: PEFT adapter of the generator.
        batch_tokens: tokens per batch.
        max_new_tokens: maximum tokens of an answer.
        device: cpu, cuda, cuda:1 ...; by default cuda if available, else cpu.
        seed: seed of the answers that Delta-SePer samples.
        input: file of items: JSON lines or a JSON list.
        output: file to write: a JSON list if its name ends in `.json`, else JSON lines.
        resume: continue an interrupted run.
    """

    model: str = field()  # required here, although it has a default in the settings
    max_new_tokens: Positive = 64
    device: str | None = None
    seed: Seed = 0
    input: Path
    output: Path
    resume: bool = False


@dataclass(kw_only=True)
class ValidityFlags(Validated):
    """Flags of `scoring.validity`.

    Args:
        config: YAML file with settings of a run (generator, retrieval, scoring, data); flags override them as in
            train/dpo.py.
        input: items with `is_relevant`, instead of turns and a collection.
        model: with `--input`: folder, Hub id or `.gguf` file of the generator.
        entailment: entailment model of Delta-SePer, or `exact`.
        rewards: rewards to check; by default all except Delta-SePer, and key_entropy@logged if every question has a
            reply.
        run: with `--config`: folder of a run; print how its rewards order its candidates.
        output: folder for validity.json, validity.md and validity.svg.
        limit: use only the first N turns of each data set, or the first N items.
        seed: seed for drawing the document lists.
    """

    config: Path | None = None
    input: Path | None = None
    model: str | None = None
    entailment: str | None = None
    rewards: list[str] = field(default_factory=list)
    run: Path | None = None
    output: Path | None = None
    limit: Positive | None = None
    seed: Seed = 0

    def __post_init__(self) -> None:
        if bool(self.config) == bool(self.input):
            raise InputError("give either `--config` (turns and a collection) or `--input` (items).")
        for name in self.rewards:
            check_reward_name("--rewards", name)
        if self.run and not self.config:
            raise InputError("`--run` needs `--config`, the settings of that run.")
        if not self.output and not self.run:
            raise InputError("`--output` is not set; name a folder for validity.json, .md and .svg.")
        if self.input and not self.model:
            raise InputError("`--input` needs `--model`, the generator.")
