"""Settings: one dataclass per section, read from YAML and overridden by `--section.key value`. Imports no torch."""

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

ROUND_STAGES = ("candidates", "rankings", "scores", "pairs", "sft", "dpo")  # `sft` in the first round only
SYSTEMS = ("original", "history", "base", "base_examples", "sft", "dpo", "reference")  # of the evaluation


@dataclass
class RunSettings:
    """Where the run lives and how far it goes.

    Args:
        dir: run folder; every stage has a folder in it.
        seed: seed of sampling, shuffling and training.
        limit: use the first N turns of each file and each data set (for a quick look).
        until: stop after this stage, such as `round-1/pairs`; `pairs` is that of the first round.
        redo_from: make this stage and all later ones again; the old ones are kept until the run has ended.
        only: make this stage alone; the earlier ones must be complete.
        max_failed_fraction: stop when more than this share of a stage's records failed.
        threads: CPU threads of each process; by default the processes of a machine share its cores out.
    """

    dir: str
    seed: int = 1
    limit: int | None = None
    until: str | None = None
    redo_from: str | None = None
    only: str | None = None
    max_failed_fraction: float = 0.1
    threads: int | None = None

    @property
    def path(self) -> Path:
        return Path(self.dir)


@dataclass
class DataSettings:
    """Conversations and collection.

    Args:
        format: `records` reads the project's own files; `topiocqa`, `qrecc` and `mtrag` read those sets as they are
            published (docs/data.md); `tiny_world` makes its files.
        train: turns to train on.
        test: held-out turns to evaluate on.
        qrels: gold passages of the test turns, for a published set that keeps them in a file of their own.
        train_qrels: the same for the training turns.
        corpus: the collection: a file (JSONL, TSV, parquet) or a data set of the Hub (`owner/name`).
        sets: several data sets, in place of the five settings above: name -> its `train`, `test`, `qrels`,
            `train_qrels` and `corpus`. Each turn is searched in the collection of its own set.
        test_share: hold out this share of the conversations of a `train` file for testing, where its set has no `test`
            file: the last conversations of the file. The number is rounded up; less than a hundredth of a conversation
            counts for nothing, so that 0.3333 is a third.
        development_share: keep this share of the other conversations, the last of them, out of training too, to choose
            settings with. The number is rounded up in the same way.
        evaluate_on: evaluate on the `test` turns or on the `development` turns.
        on_bad: a passage that cannot be used stops the run (`stop`), or is left out and counted (`skip`).
        pool: use a small pooled collection in place of the whole: the gold passages of all turns, and this many
            passages that BM25 finds for each question and each `rewrite`. 0 says that `corpus` is a pool already.
        world_seed: seed of the tiny world.
    """

    format: Literal["records", "topiocqa", "qrecc", "mtrag", "tiny_world"] = "records"
    train: str | None = None
    test: str | None = None
    qrels: str | None = None
    train_qrels: str | None = None
    corpus: str | None = None
    sets: dict[str, Any] = field(default_factory=dict)
    test_share: float | None = None
    development_share: float = 0.0
    evaluate_on: Literal["test", "development"] = "test"
    on_bad: Literal["stop", "skip"] = "stop"
    pool: int | None = None
    world_seed: int = 0


@dataclass
class RewriterSettings:
    """The model that is trained, and how candidates are sampled from it.

    Args:
        model: folder, Hub id or `.gguf` file of a causal language model (docs/models.md); an evaluation that neither
            rewrites nor answers needs none.
        adapter: PEFT adapter to start from.
        instruction: system message of the rewrite prompt; empty for the built-in one.
        dtype: float32, bfloat16 or float16.
        n: samples per turn.
        temperature: sampling temperature.
        top_p: nucleus sampling threshold; 1 keeps the whole distribution.
        max_new_tokens: longest rewrite.
        batch_tokens: tokens per batch, samples included.
        examples: list of {conversation, rewrite}, shown to the model as messages when the first round is sampled;
            training and later rounds do without them.
        history_messages: number of earlier messages that are shown, the last ones; all when not given.
        history_words: words of each earlier message that are shown, the first ones; all when not given.
        include: queries that join the samples as candidates: the last `question`, and the `history` (all user turns,
            joined).
        query: what is searched: the `rewrite`, or the question and the rewrite (`joined`).
        question_weight: for `joined`: how often the question is repeated.
    """

    model: str | None = None
    adapter: str | None = None
    instruction: str = ""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    n: int = 8
    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 48
    batch_tokens: int = 16384
    examples: list[dict[str, str]] = field(default_factory=list)
    history_messages: int | None = None
    history_words: int | None = None
    include: list[Literal["question", "history"]] = field(default_factory=list)
    query: Literal["rewrite", "joined"] = "rewrite"
    question_weight: int = 2


@dataclass
class GeneratorSettings:
    """The model that answers and scores.

    Args:
        model: folder, Hub id or `.gguf` file; the rewriter's model and adapter when not given.
        adapter: PEFT adapter of that model.
        dtype: float32, bfloat16 or float16.
        max_new_tokens: longest answer.
        batch_tokens: tokens per batch.
        document_tokens: tokens of each document that the generator reads, the first ones; all when not given.
        history_tokens: tokens of the conversation that it reads, the last messages; all when not given.
    """

    model: str | None = None
    adapter: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    max_new_tokens: int = 64
    batch_tokens: int = 16384
    document_tokens: int | None = None
    history_tokens: int | None = None


@dataclass
class RetrievalSettings:
    """Retriever.

    Args:
        engine: `auto` (`rank_bm25` up to 20,000 passages, `bm25s` above), `rank_bm25` (exact, for small collections),
            `bm25s` (an index on disk), `dense`, `lucene`, `http` (a running OpenSearch or Elasticsearch) or `hybrid`
            (two of them).
        analyzer: `english` (lower case, stop words, Snowball stems), `lucene` (as Lucene's EnglishAnalyzer) or `plain`
            (lower-case words).
        k: documents given to the generator.
        depth: documents per ranking in the evaluation.
        k1: BM25 term-frequency saturation.
        b: BM25 length normalisation.
        bm25_variant: BM25 with Lucene's idf (`lucene`), as rank-bm25's Okapi (`okapi`, frequent terms can score below
            zero; not with bm25s), BM25+ (`plus`) or BM25L (`l`).
        hybrid: for `hybrid`: the two engines.
        rrf_k: for `hybrid`: the constant of reciprocal rank fusion.
        url: for `http`: the server, such as https://search.example.org:9200.
        index: for `http`: the index to search.
        fields: for `http`: the index's text fields that are searched.
        retries: for `http`: how often a request is sent again when the server is busy or away.
        cache: folder for collections and indexes; by default `query-rewriter-trainer` in the user's cache.
        encoder: dense: folder or Hub id of a text encoder.
        pooling: dense: `mean` or `cls`, for a plain Transformers encoder (`mean` when not given).
        normalize: dense: vectors of length 1; as the encoder says when not given.
        query_prefix: dense: put before each query; the encoder's own when not given.
        passage_prefix: dense: put before each passage; the encoder's own when not given.
        max_length: dense: tokens of the longest text; as the encoder says when not given.
        dtype: dense: float32, bfloat16 or float16.
        batch_tokens: dense: tokens per batch.
        faiss: dense: `flat` (exact), `ivf` or `hnsw` (approximate, faster).
        prebuilt: lucene: name of an index that Pyserini offers, or folder of a Lucene index; made from the collection
            when not given.
    """

    engine: Literal["auto", "rank_bm25", "bm25s", "dense", "lucene", "http", "hybrid"] = "auto"
    analyzer: Literal["english", "lucene", "plain"] = "english"
    k: int = 3
    depth: int = 100
    k1: float = 0.9
    b: float = 0.4
    bm25_variant: Literal["lucene", "okapi", "plus", "l"] = "lucene"
    hybrid: list[Literal["rank_bm25", "bm25s", "dense", "lucene", "http"]] = field(default_factory=list)
    rrf_k: int = 60
    url: str | None = None
    index: str | None = None
    fields: list[str] = field(default_factory=lambda: ["title", "text"])
    retries: int = 5
    cache: str | None = None
    encoder: str | None = None
    pooling: Literal["mean", "cls"] | None = None
    normalize: bool | None = None
    query_prefix: str | None = None
    passage_prefix: str | None = None
    max_length: int | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    batch_tokens: int = 16384
    faiss: Literal["flat", "ivf", "hnsw"] = "flat"
    prebuilt: str | None = None


@dataclass
class ScoringSettings:
    """The reward of a document list.

    Args:
        reward: `key_entropy`, `entropy`, `key_ppl`, `ppl` (GROGU, no labels); `udcg`, `reciprocal_rank` (need
            `relevant`); `delta_seper_soft`, `delta_seper_hard`, `answer_logprob` (need `answers`); or `weighted`.
        weights: for `weighted`: reward -> weight; each reward is standardised over a turn's document lists first.
        question: what the generator is asked: the `conversation` (the same for every candidate) or the candidate
            (`rewrite`).
        answer: GROGU: whose answer's tokens are scored: the generator's own (`generated`, as in the paper), or the
            reply that the chat log holds for the turn (`logged`: `reply`, else the first of `answers`). A turn whose
            reply is empty or abstains takes `generated`.
        reply_tokens: GROGU, logged: tokens of the reply that are scored, the first ones.
        alpha: GROGU: a token is key when the documents change its entropy by more than this many nats.
        fallback: GROGU: share of tokens taken, highest entropy first, when none is key.
        fallback_by: GROGU: entropy that the fallback sorts by.
        log_ppl: GROGU: difference of mean log-likelihoods in place of perplexities.
        abstention: UDCG: probability of the first token of "NO-RESPONSE" (`first_token`) or of all of it (`sequence`).
        relevant_weight: UDCG: weight of a relevant document.
        irrelevant_weight: UDCG: weight of another document.
        normalise: UDCG: divide by `all` documents, or `per_class`.
        samples: Delta-SePer: answers sampled with, and without, the documents.
        sample_tokens: Delta-SePer: longest sampled answer.
        kernel: Delta-SePer, soft: `bidirectional_max` or `response_entails`.
        aggregate: Delta-SePer: `max` or `mean` over several reference answers.
        clusters: Delta-SePer, hard: answers are one cluster when each entails the other (`strict`), or when neither
            contradicts and not both are neutral (`loose`).
        entailment: Delta-SePer: folder or Hub id of an entailment model, or `exact` (normalised exact match).
    """

    reward: Literal[
        "key_entropy", "entropy", "key_ppl", "ppl", "udcg", "delta_seper_soft", "delta_seper_hard",
        "reciprocal_rank", "answer_logprob", "weighted",
    ] = "key_entropy"  # fmt: skip
    weights: dict[str, float] = field(default_factory=dict)
    question: Literal["conversation", "rewrite"] = "conversation"
    answer: Literal["generated", "logged"] = "generated"
    reply_tokens: int = 80
    alpha: float = 0.05
    fallback: float = 0.10
    fallback_by: Literal["ungrounded", "grounded"] = "ungrounded"
    log_ppl: bool = False
    abstention: Literal["first_token", "sequence"] = "first_token"
    relevant_weight: float = 1.0
    irrelevant_weight: float = -0.333
    normalise: Literal["all", "per_class"] = "all"
    samples: int = 10
    sample_tokens: int = 128
    kernel: Literal["bidirectional_max", "response_entails"] = "bidirectional_max"
    aggregate: Literal["max", "mean"] = "max"
    clusters: Literal["strict", "loose"] = "strict"
    entailment: str = "microsoft/deberta-v2-xlarge-mnli"


@dataclass
class PairSettings:
    """Which preference pairs are kept.

    Args:
        drop_fraction: share of pairs dropped, smallest gaps first.
        min_gap: then drop gaps below this; 0 keeps every pair.
    """

    drop_fraction: float = 0.5
    min_gap: float = 0.0


@dataclass
class TrainSettings:
    """Rounds of sampling, scoring and DPO.

    Args:
        rounds: number of rounds; each samples candidates from the rewriter of the round before. 1 is offline DPO.
        learn_from: pairs that the DPO of a later round learns from: those of `all` rounds so far, or the `last`.
        start_from: adapter that the DPO of a later round starts from: the `sft` adapter, or that of the `last` round.
    """

    rounds: int = 1
    learn_from: Literal["all", "last"] = "all"
    start_from: Literal["sft", "last"] = "sft"


@dataclass
class EvaluationSettings:
    """What is compared on held-out turns.

    Args:
        systems: rows of the result table.
        answers: also answer every turn from each system's documents (EM, F1, contains, key_entropy).
        resamples: bootstrap and randomisation resamples per comparison.
    """

    systems: list[str] = field(default_factory=lambda: ["original", "history", "base", "sft", "dpo", "reference"])
    answers: bool = True
    resamples: int = 2000


@dataclass
class Settings:
    """A whole run. `lora`, `sft` and `dpo` are handed to PEFT's `LoraConfig` and TRL's `SFTConfig` and `DPOConfig`."""

    run: RunSettings
    data: DataSettings
    rewriter: RewriterSettings
    generator: GeneratorSettings
    retrieval: RetrievalSettings
    scoring: ScoringSettings
    pairs: PairSettings
    train: TrainSettings
    evaluation: EvaluationSettings
    lora: dict[str, Any] = field(default_factory=dict)
    sft: dict[str, Any] = field(default_factory=dict)
    dpo: dict[str, Any] = field(default_factory=dict)


SECTIONS = {f.name: f.type for f in fields(Settings)}
PASSED_ON = ("lora", "sft", "dpo")


def as_plain(settings: Settings) -> dict[str, Any]:
    """All settings as nested dicts, for the log and the records."""
    return asdict(settings)
