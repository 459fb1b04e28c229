"""Settings of a run: one dataclass per section, read from YAML and overridden by `--section.key value`.

Types declare ranges and choices; docstrings contain the help. This module does not import torch.
"""

import math
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from annotated_types import Ge, Gt, Le

from core.data_settings import DataSettings
from core.errors import CREDENTIALS, InputError
from core.retrieval_settings import RetrievalSettings, check_engines
from core.schema import Dtype, Fraction, NonNegative, Positive, Seed, Text, Validated, texts_of
from core.scoring_settings import ScoringSettings
from core.urls import check_url

ROUND_STAGES = ("candidates", "rankings", "scores", "pairs", "sft", "dpo")  # `sft` in the first round only
System = Literal["original", "history", "base", "base_examples", "sft", "dpo", "reference"]
SYSTEMS: tuple[str, ...] = get_args(System)
RESERVED = {  # keys of TRL's configuration that cannot be set -> the reason, or the setting to use
    "output_dir": "files go to `run.dir`",
    "report_to": "use `train.report_to`",
    "push_to_hub": "`python -m train.export` uploads",
    "hub_token": "settings are logged and recorded; set HF_TOKEN in the environment",
    "trust_remote_code": "code from model repositories is never run",
}


@dataclass(kw_only=True)
class RunSettings(Validated):
    """The run folder and the stages to run.

    Args:
        dir: run folder, with a subfolder for each stage.
        seed: seed of sampling, shuffling and training.
        limit: use only the first N turns of each file and each data set (for a quick test).
        until: stop after this stage, such as `round-1/pairs`; a name without a round means round 1.
        redo_from: run this stage and all later ones again; the old ones stay in `<run>/.before` until the whole run
            has finished.
        only: run only this stage; the earlier ones must be complete.
        max_failed_fraction: stop if more than this share of a stage's records failed.
        plan: print the stages that the command would run and their cost, then stop (docs/scale.md).
        tflops: TFLOP/s of all processes together, for the estimates of `plan`.
        threads: CPU threads of each process; by default the cores of a machine divided among its processes.
    """

    dir: Text
    seed: Seed = 1
    limit: Positive | None = None
    until: str | None = None
    redo_from: str | None = None
    only: str | None = None
    max_failed_fraction: Fraction = 0.1
    plan: bool = False
    tflops: Annotated[float, Gt(0)] = 100.0
    threads: Positive | None = None

    @property
    def path(self) -> Path:
        return Path(self.dir)


@dataclass(kw_only=True)
class ModelSettings(Validated):
    """A causal language model.

    Args:
        model: folder, Hub id or `.gguf` file (docs/models.md).
        adapter: PEFT adapter of that model.
        dtype: type of the weights.
        quantization: `4bit` loads the base model in 4 bits (needs the extra `4bit`); training is then QLoRA.
        device_map: `auto` spreads a model that is not being trained over all GPUs, then the CPU; for one process.
        batch_tokens: tokens per batch, including samples.
    """

    model: str | None = None
    adapter: str | None = None
    dtype: Dtype = "float32"
    quantization: Literal["4bit"] | None = None
    device_map: Literal["auto"] | None = None
    batch_tokens: Positive = 16384


@dataclass(kw_only=True)
class RewriteExample(Validated):
    """A few-shot example for the rewriter's prompt.

    Args:
        conversation: the conversation up to the question, as the prompt shows it.
        rewrite: the stand-alone query.
    """

    conversation: Text
    rewrite: Text


@dataclass(kw_only=True)
class RewriterSettings(ModelSettings):
    """The model to train, its prompt, and how candidates are sampled.

    Args:
        model: folder, Hub id or `.gguf` file of a causal language model (docs/models.md); not needed for an evaluation
            without rewriters and answers.
        adapter: PEFT adapter to start from.
        url: OpenAI-compatible server, such as http://localhost:8000/v1 (docs/models.md): it samples the candidates of
            the first round and writes the `base` and `base_examples` rewrites of the evaluation. Training and later
            rounds need `model`, which should be the model on the server.
        served_model: name of the model on that server.
        concurrency: number of simultaneous requests of each process to the server.
        retries: retries of a request when the server is busy or unavailable; waits grow to 8 seconds.
        timeout: timeout of a request to the server, in seconds.
        extra_body: additional fields of each request to the server.
        instruction: system message of the rewrite prompt; empty for the built-in one.
        max_new_tokens: maximum tokens of a rewrite.
        history_messages: number of most recent messages in the prompt; by default all.
        history_words: maximum words of each earlier message in the prompt, from its beginning; by default all.
        n: samples per turn.
        temperature: sampling temperature.
        top_p: nucleus sampling threshold; 1 keeps the whole distribution.
        examples: few-shot examples, a list of {conversation, rewrite}, shown as messages when the first round is
            sampled; training and later rounds do not use them.
        include: queries to add to the samples as candidates: the last `question`, and the `history` (all user turns,
            joined).
        query: the search query: the `rewrite`, or the question and the rewrite (`joined`).
        question_weight: for `joined`: number of times that the question is repeated.
    """

    url: str | None = None
    served_model: Text | None = None
    concurrency: Positive = 16
    retries: NonNegative = 10
    timeout: Annotated[float, Gt(0)] = 600.0
    extra_body: dict[str, Any] = field(default_factory=dict)
    instruction: str = ""
    max_new_tokens: Positive = 48
    history_messages: NonNegative | None = None
    history_words: Positive | None = None
    n: Annotated[int, Ge(2)] = 8
    temperature: Annotated[float, Ge(0.01)] = 1.0
    top_p: Annotated[float, Gt(0), Le(1)] = 1.0
    examples: list[RewriteExample] = field(default_factory=list)
    include: list[Literal["question", "history"]] = field(default_factory=list)
    query: Literal["rewrite", "joined"] = "rewrite"
    question_weight: Positive = 2

    @property
    def server(self) -> dict[str, str]:
        """The model on the server, as a stage records it; a server provides no hash of its weights."""
        return {"url": self.url, "served_model": self.served_model}

    def __post_init__(self) -> None:
        if (self.url is None) != (self.served_model is None):
            raise InputError(
                "`rewriter.url` and `rewriter.served_model` together name a model on a server; set both or neither."
            )
        if self.url is not None:
            check_url("rewriter.url", self.url, "OPENAI_API_KEY", ends_with="/v1")


@dataclass(kw_only=True)
class GeneratorSettings(ModelSettings):
    """The model that answers and scores.

    Args:
        model: folder, Hub id or `.gguf` file; by default the rewriter's model and adapter.
        max_new_tokens: maximum tokens of an answer.
        document_tokens: maximum tokens of each document in the prompt, from its beginning; by default all.
        history_tokens: maximum tokens of the conversation in the prompt, the last messages; by default all.
    """

    max_new_tokens: Positive = 64
    document_tokens: Positive | None = None
    history_tokens: NonNegative | None = None

    def __post_init__(self) -> None:
        if self.adapter and not self.model:
            raise InputError("`generator.adapter` needs `generator.model`: the model that it belongs to.")

    @property
    def model_key(self) -> str:
        """The setting that names the generator's model."""
        return "generator.model" if self.model else "rewriter.model"

    @property
    def limits(self) -> dict[str, int | None]:
        """The settings that only the generator has; stages record them, because they affect its answers."""
        shared = {field.name for field in fields(ModelSettings)}
        return {name: value for name, value in asdict(self).items() if name not in shared}


@dataclass(kw_only=True)
class PairSettings(Validated):
    """Preference pairs to keep.

    Args:
        drop_fraction: share of pairs to drop, smallest gaps first.
        min_gap: then drop pairs with a smaller gap; 0 keeps every pair.
    """

    drop_fraction: Fraction = 0.5
    min_gap: Annotated[float, Ge(0)] = 0.0


@dataclass(kw_only=True)
class TrainSettings(Validated):
    """Rounds of sampling, scoring and DPO.

    Args:
        rounds: number of rounds; each samples candidates from the rewriter of the round before. 1 is offline DPO.
        learn_from: pairs that DPO of a later round trains on: those of `all` rounds so far, or of the `last` round.
        start_from: adapter that DPO of a later round starts from: the `sft` adapter, or that of the `last` round.
        report_to: trackers for training curves, counts and measures; all stages go to one run of each tracker.
    """

    rounds: Positive = 1
    learn_from: Literal["all", "last"] = "all"
    start_from: Literal["sft", "last"] = "sft"
    report_to: list[Literal["tensorboard", "wandb"]] = field(default_factory=list)


@dataclass(kw_only=True)
class EvaluationSettings(Validated):
    """Systems to compare on held-out turns.

    Args:
        systems: rows of the result table.
        answers: let the generator answer from each system's documents, and report its answers (EM, F1, contains,
            key_entropy) and the run's reward of the documents.
        resamples: bootstrap and randomization resamples per comparison.
    """

    systems: list[System] = field(default_factory=lambda: ["original", "history", "base", "sft", "dpo", "reference"])
    answers: bool = True
    resamples: Positive = 2000

    def __post_init__(self) -> None:
        if not self.systems or len(set(self.systems)) < len(self.systems):
            raise InputError(
                f"`evaluation.systems` must name one or more of {', '.join(SYSTEMS)}, each once; got {self.systems}."
            )


@dataclass(kw_only=True)
class ReportSettings(Validated):
    """Contents of `<run>/report.html`.

    Args:
        examples: number of held-out turns to show with conversation, queries, documents and answers; 0 omits all texts
            of conversations and documents, for logs that must not be shared.
    """

    examples: NonNegative = 30


@dataclass(kw_only=True)
class Settings(Validated):
    """A whole run; `lora`, `sft` and `dpo` are passed to PEFT and TRL.

    Args:
        lora: any key of PEFT's LoraConfig.
        sft: any key of TRL's SFTConfig.
        dpo: any key of TRL's DPOConfig.
    """

    run: RunSettings
    data: DataSettings = field(default_factory=DataSettings)
    rewriter: RewriterSettings = field(default_factory=RewriterSettings)
    generator: GeneratorSettings = field(default_factory=GeneratorSettings)
    retrieval: RetrievalSettings = field(default_factory=RetrievalSettings)
    scoring: ScoringSettings = field(default_factory=ScoringSettings)
    pairs: PairSettings = field(default_factory=PairSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    report: ReportSettings = field(default_factory=ReportSettings)
    lora: dict[str, Any] = field(default_factory=dict)
    sft: dict[str, Any] = field(default_factory=dict)
    dpo: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_engines(self.retrieval, len(self.data.sets))
        for name, text in texts_of(asdict(self)):
            if "\0" in text:
                raise InputError(f"`{name}` must not contain a null byte, got {text!r:.60}.")
            if CREDENTIALS.search(text):
                raise InputError(f"`{name}` contains credentials, and settings are logged and recorded; remove them.")
        for section in ("sft", "dpo"):
            for name in getattr(self, section):
                if name in RESERVED:
                    raise InputError(f"`{section}.{name}` cannot be set: {RESERVED[name]}.")
        for section in ("lora", "sft", "dpo"):
            for name, value in getattr(self, section).items():
                if isinstance(value, float) and not math.isfinite(value):
                    raise InputError(f"`{section}.{name}` must be a finite number, got {value}.")
