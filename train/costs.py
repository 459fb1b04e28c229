"""Estimate the cost of each stage of a run from the turns, some passages, and the models' configurations.

A forward pass costs 2 FLOPs per parameter and token. Training a LoRA adapter costs 4, because the frozen weights need
no gradient, and 6 with gradient checkpointing, which repeats the forward pass. The estimate omits attention scores,
whose FLOPs grow with the context (arXiv 2001.08361, section 2.1).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import NamedTuple

from core.distributed import process
from core.language_model import LanguageModel, load_tokenizer
from core.model_spec import ModelSpec
from core.records import GenerationInput, Turn
from rewriter.prompts import RewritePrompt
from rewriter.sampling import prompts_of
from scoring import grogu
from scoring.generator import Generator
from scoring.registry import REWARDS, component_rewards
from train.evaluation import BASELINES, select_systems
from train.policy import add_lora, meta_model
from train.run import EVALUATION, Run, split_stage
from train.trainer_config import trainer_config

SAMPLE = 64  # turns to tokenize
DISTINCT = 0.6  # share of samples that retrieve distinct document lists; 0.4 to 0.8 in runs of tiny and small models
CANDIDATE_BYTES, HIT_BYTES, LIST_BYTES, TOKEN_BYTES, PAIR_BYTES = 200, 50, 300, 110, 400  # size in the records
STATES = 4  # saved values per trained weight: the weight, its copy in the checkpoint, and two Adam moments


class Work(NamedTuple):
    """A cost: sequences that a model processes, their tokens, FLOPs, and bytes on disk."""

    calls: float = 0.0
    tokens: float = 0.0
    flops: float = 0.0
    disk: float = 0.0

    def times(self, factor: float) -> "Work":
        return Work(*(factor * value for value in self))

    def plus(self, other: "Work") -> "Work":
        return Work(*map(sum, zip(self, other, strict=True)))


class Lengths(NamedTuple):
    """Mean tokens per turn: the rewriter's prompt and output, the generator's prompt without documents, `retrieval.k`
    documents, and the logged reply (None if no turn has one)."""

    prompt: float
    rewrite: float
    bare: float
    documents: float
    reply: float | None


def untrained_model(spec: ModelSpec, key: str) -> LanguageModel:
    """Build a model without weights, with its tokenizer; `key` is the setting that names it, for messages."""
    return LanguageModel(spec.name, meta_model(spec.name, key), load_tokenizer(spec.name))


def mean_tokens(lm: LanguageModel, texts: Sequence[str]) -> float:
    return fmean(map(len, lm.tokenizer(list(texts), add_special_tokens=False)["input_ids"]))


@dataclass
class Costs:
    """Estimates the costs of the stages of a run from the texts of some passages; opens no collection."""

    run: Run
    passages: Sequence[str]

    def __post_init__(self) -> None:
        self.rewriter = untrained_model(self.run.base, "rewriter.model")
        self.generator = untrained_model(self.run.generator, self.run.settings.generator.model_key)
        self.size, self.generator_size = self.rewriter.model.num_parameters(), self.generator.model.num_parameters()
        policy = add_lora(meta_model(self.rewriter.name, "rewriter.model"), self.rewriter.name, self.run.settings.lora)
        self.adapter_size, _ = policy.get_nb_trainable_parameters()

    @cached_property
    def train_lengths(self) -> Lengths:
        return self.lengths(self.run.train_turns.turns)

    def lengths(self, turns: Sequence[Turn]) -> Lengths:
        """Mean tokens per turn, estimated on a sample of the turns."""
        settings, k = self.run.settings, self.run.settings.retrieval.k
        sample = turns[:: max(1, len(turns) // SAMPLE)][:SAMPLE]
        room, prompt = settings.rewriter.max_new_tokens, RewritePrompt.of(settings.rewriter, examples=True)
        prompts = prompts_of(self.rewriter, sample, prompt, room)
        inputs = [
            GenerationInput.of(
                turn.history, turn.question, [self.passages[(i + j) % len(self.passages)] for j in range(k)]
            )
            for i, turn in enumerate(sample)
        ]
        generator = Generator.of(self.generator, settings.generator)
        grounded, bare = (
            fmean(len(ids) for ids, _ in generator.prompts(prompt_inputs, generator.max_new_tokens).values())
            for prompt_inputs in (inputs, [item.without_documents for item in inputs])
        )
        replies = [turn.logged_reply for turn in sample if turn.logged_reply.strip()]
        return Lengths(
            fmean(len(ids) for ids, _ in prompts),
            min(room, 1 + mean_tokens(self.rewriter, [turn.rewrite or turn.question for turn in sample])),
            bare,
            max(0.0, grounded - bare),
            mean_tokens(self.generator, replies) if replies else None,
        )

    @property
    def passes(self) -> set[str]:
        """Generator passes of the run's reward. All GROGU rewards share one, and so do both Delta-SePer rewards."""
        rule = self.run.settings.scoring
        rewards = [name for name in component_rewards(rule) if REWARDS[name].needs_generator]
        names = {name.removesuffix("_soft").removesuffix("_hard") for name in rewards}
        return {rule.answer if name in grogu.REWARDS else name for name in names}

    def scoring(self, lengths: Lengths, lists: float, passes: set[str]) -> Work:
        """Cost of scoring the document lists of a turn; the common prefix of their prompts is computed once."""
        settings, (_, _, bare, documents, reply) = self.run.settings, lengths
        rule, calls, tokens = settings.scoring, 0.0, 0.0
        limits = {"logged": rule.reply_tokens, "delta_seper": rule.sample_tokens}
        for name in passes:
            most = limits.get(name, settings.generator.max_new_tokens)
            output = most if reply is None else min(most, reply)
            if name == "generated":  # each answer is generated with documents, and scored without them
                outputs = 2 * lists
            elif name == "logged":
                outputs = lists + 1
            elif name == "delta_seper":
                outputs = (lists + 1) * rule.samples
            else:  # each document is scored alone
                outputs = lists * settings.retrieval.k
            calls += outputs
            tokens += 2 * bare + lists * documents + outputs * output
        return Work(calls, tokens, 2 * self.generator_size * tokens)

    def training(self, section: str, rows: float) -> Work:
        """Cost of SFT on the chosen rewrites, or of DPO on both sides with the frozen reference."""
        config = trainer_config(self.run.settings, section, self.run.path)
        rows_of_step = config.per_device_train_batch_size * config.gradient_accumulation_steps * process()[1]
        trained = config.max_steps * rows_of_step if config.max_steps > 0 else rows * config.num_train_epochs
        reference = 0.0
        if section == "dpo":
            reference = 2 * (rows if config.precompute_ref_log_probs else trained)
            trained *= 2
        length, factor = sum(self.train_lengths[:2]), 6 if config.gradient_checkpointing else 4
        flops = self.size * length * (factor * trained + 2 * reference)
        return Work(trained + reference, (trained + reference) * length, flops, STATES * 4 * self.adapter_size)

    def evaluation(self) -> Work:
        """Cost of the rewrites of all models, and of answers with the documents of all systems."""
        settings, turns, rounds = self.run.settings, self.run.test_turns, self.run.settings.train.rounds
        systems = select_systems(settings, [f"dpo-{n}" for n in range(1, rounds)], turns.turns)
        lengths, models = self.lengths(turns.turns), len(set(systems) - set(BASELINES))
        tokens = models * (lengths.prompt + lengths.rewrite)
        disk = len(systems) * (LIST_BYTES + 2 * settings.retrieval.depth * HIT_BYTES)  # records and TREC runs
        work = Work(models, tokens, 2 * self.size * tokens, disk)
        if settings.evaluation.answers:  # 1 more list: the shuffled documents
            work = work.plus(self.scoring(lengths, len(systems) + 1, self.passes | {"generated"}))
        return work.times(len(turns))

    def of(self, stage: str) -> tuple[int, Work]:
        """Number of turns and cost of a stage, one of `stage_names`."""
        if stage == EVALUATION:
            return len(self.run.test_turns), self.evaluation()
        number, name = split_stage(stage)
        settings, lengths = self.run.settings, self.train_lengths
        turns, n = len(self.run.train_turns), settings.rewriter.n
        lists, pairs = n * DISTINCT + len(settings.rewriter.include), turns * (1 - settings.pairs.drop_fraction)
        disk = lists * CANDIDATE_BYTES
        if name == "candidates":
            tokens = lengths.prompt + n * lengths.rewrite
            return turns, Work(n, tokens, 2 * self.size * tokens, disk).times(turns)
        if name == "pairs":
            return turns, Work(disk=pairs * (PAIR_BYTES + 4 * lengths.prompt))
        if name in ("sft", "dpo"):
            rounds = number if settings.train.learn_from == "all" else 1
            return turns, self.training(name, rounds * pairs)
        disk += lists * settings.retrieval.k * HIT_BYTES
        if name == "rankings":
            return turns, Work(disk=turns * disk)
        if name != "scores":
            raise ValueError(f"the cost of the stage `{stage}` is not known; add it here")
        disk += lists * (LIST_BYTES + TOKEN_BYTES * (lengths.reply or settings.generator.max_new_tokens))
        return turns, self.scoring(lengths, lists, self.passes)._replace(disk=disk).times(turns)
