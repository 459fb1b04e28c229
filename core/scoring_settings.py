"""Settings of the reward."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge

from core.schema import Fraction, Positive, Validated

Reward = Literal[
    "key_entropy", "entropy", "key_ppl", "ppl", "udcg", "reciprocal_rank", "delta_seper_soft", "delta_seper_hard",
    "answer_logprob",
]  # fmt: skip


@dataclass(kw_only=True)
class RewardSettings(Validated):
    """A reward of single document lists.

    Args:
        reward: `key_entropy`, `entropy`, `key_ppl`, `ppl` (GROGU, no labels); `udcg`, `reciprocal_rank` (need
            `relevant`); `delta_seper_soft`, `delta_seper_hard`, `answer_logprob` (need `answers`).
        answer: GROGU: the answer whose tokens are scored: the generator's own (`generated`, as in the paper), or the
            turn's reply in the chat log (`logged`: `reply`, else the first of `answers`). A turn with an empty or
            abstaining reply uses `generated`.
        reply_tokens: GROGU, logged: maximum tokens of the reply to score, from its beginning.
        alpha: GROGU: a token is a key token if the documents change its entropy by more than this many nats.
        fallback: GROGU: share of tokens, highest entropy first, to use if there is no key token.
        fallback_by: GROGU: entropy that the fallback sorts by.
        log_ppl: GROGU: difference of mean log-likelihoods instead of perplexities.
        abstention: UDCG: probability of the first token of "NO-RESPONSE" (`first_token`) or of all of it (`sequence`).
        relevant_weight: UDCG: weight of a relevant document.
        irrelevant_weight: UDCG: weight of an irrelevant document.
        normalize: UDCG: divide by the number of `all` documents, or add the means of the two classes (`per_class`).
        samples: Delta-SePer: number of answers sampled with the documents, and without them.
        sample_tokens: Delta-SePer: maximum tokens of a sampled answer.
        kernel: Delta-SePer, soft: `bidirectional_max` or `response_entails`.
        aggregate: Delta-SePer: `max` or `mean` over several reference answers.
        clusters: Delta-SePer, hard: two answers share a cluster if each entails the other (`strict`), or if neither
            contradicts the other and not both are neutral (`loose`).
        entailment: Delta-SePer: folder or Hub id of an entailment model, or `exact` (normalized exact match).
    """

    reward: Reward = "key_entropy"
    answer: Literal["generated", "logged"] = "generated"
    reply_tokens: Positive = 80
    alpha: Annotated[float, Ge(0)] = 0.05
    fallback: Fraction = 0.10
    fallback_by: Literal["ungrounded", "grounded"] = "ungrounded"
    log_ppl: bool = False
    abstention: Literal["first_token", "sequence"] = "first_token"
    relevant_weight: float = 1.0
    irrelevant_weight: float = -0.333
    normalize: Literal["all", "per_class"] = "all"
    samples: Positive = 10
    sample_tokens: Positive = 128
    kernel: Literal["bidirectional_max", "response_entails"] = "bidirectional_max"
    aggregate: Literal["max", "mean"] = "max"
    clusters: Literal["strict", "loose"] = "strict"
    entailment: str = "microsoft/deberta-v2-xlarge-mnli"


@dataclass(kw_only=True)
class ScoringSettings(RewardSettings):
    """The reward of a document list.

    Args:
        reward: `key_entropy`, `entropy`, `key_ppl`, `ppl` (GROGU, no labels); `udcg`, `reciprocal_rank` (need
            `relevant`); `delta_seper_soft`, `delta_seper_hard`, `answer_logprob` (need `answers`); or `weighted`.
        weights: for `weighted`: reward -> weight; each reward is standardized over a turn's document lists first.
        question: input of the generator: the `conversation` with its question (the same for every candidate), or the
            candidate alone (`rewrite`).
    """

    reward: Literal[Reward, "weighted"] = "key_entropy"
    weights: dict[str, float] = field(default_factory=dict)
    question: Literal["conversation", "rewrite"] = "conversation"
