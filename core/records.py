"""The data model on one page, in the order of the flow: Turn, Passage, Candidate, Hit, TokenStats, Score, Pair."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

Message = dict[str, str]


@dataclass(frozen=True)
class Turn:
    """One question of a conversation; a line of `turns.jsonl`.

    Only `id`, `history` and `question` are needed to train. `answers`, `relevant` (document id -> grade) and
    `rewrite` (a person's stand-alone question) serve evaluation. `conversation` groups turns; without it, what stands
    before the last `_` of the id. `kind` (`first`, `follow_up`, `switch`, `return`) splits the result table. `dataset`
    is the name of its set in `data.sets`. `reply` is what the assistant said to this turn in the chat log; it serves
    `scoring.answer: logged`.
    """

    id: str
    history: tuple[Message, ...]
    question: str
    answers: tuple[str, ...] = ()
    relevant: dict[str, int] = field(default_factory=dict)
    rewrite: str | None = None
    conversation: str = ""
    dataset: str = ""
    kind: str = ""
    reply: str = ""

    @property
    def group(self) -> str:
        """The conversation that this turn belongs to: the unit of resampling in significance tests.

        Different data sets may use the same name for their conversations, so the name of the set is part of it.
        """
        conversation = self.conversation or self.id.rpartition("_")[0] or self.id
        return f"{self.dataset}/{conversation}" if self.dataset else conversation

    @property
    def depth(self) -> int:
        """The turn's number in its conversation: 1 for a first question."""
        return 1 + sum(message["role"] == "user" for message in self.history)


@dataclass(frozen=True)
class Passage:
    """One document of the collection; a line of `corpus.jsonl`."""

    id: str
    text: str
    title: str = ""

    @property
    def content(self) -> str:
        """What is indexed and what the generator reads: the title, if there is one, and the text."""
        return f"{self.title}\n{self.text}" if self.title and not self.text.startswith(self.title) else self.text


@dataclass(frozen=True)
class Candidate:
    """One distinct rewrite of a turn.

    `query` is what is searched for it. `logprob` is the sum of its tokens' raw log-probabilities (before temperature)
    in nats, the end-of-turn token included, and `tokens` their number; `count` says how many samples came out as this
    text. `source` is `sample`, or `question` or `history` for a query that was included without sampling; it has no
    log-probability.
    """

    text: str
    query: str
    logprob: float | None = None
    tokens: int = 0
    count: int = 1
    source: str = "sample"


class Hit(NamedTuple):
    """A retrieved document and the retriever's score."""

    doc: str
    score: float


@dataclass(frozen=True)
class TokenStats:
    """What the generator's passes say about one answer, token by token (lists of length T, nats).

    `h0`, `hd`: entropy of the next-token distribution without and with the documents. `logp0`, `logpd`: log-
    probability of the answer token in each.
    """

    tokens: tuple[str, ...]
    h0: tuple[float, ...]
    hd: tuple[float, ...]
    logp0: tuple[float, ...]
    logpd: tuple[float, ...]


@dataclass(frozen=True)
class Score:
    """The utility of one document list for one turn. `value` is None when there is none, and `error` says why.

    With a GROGU reward: the `answer` and its source (`generated` or `logged`), the positions of its `key` tokens and
    the `rule` that chose them, whether it reads like an abstention, whether it `ended`, how many documents were `cut`
    for want of room. With UDCG: `no_res`, the probability that the generator abstains from each document alone. With
    `weighted`: the values of its `parts`.
    """

    value: float | None
    answer: str = ""
    error: str | None = None
    rule: str = ""
    key: tuple[int, ...] = ()
    stats: TokenStats | None = None
    answer_source: str = ""
    abstains: bool = False
    ended: bool = True
    cut: int = 0
    no_res: tuple[float, ...] = ()
    parts: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Pair:
    """A preference pair as TRL reads it: `prompt`, `chosen` and `rejected` are lists of messages."""

    id: str
    prompt: list[Message]
    chosen: list[Message]
    rejected: list[Message]
    score_chosen: float
    score_rejected: float
    gap: float
    reward: str


def plain(record: Any) -> dict[str, Any]:
    """A dataclass record as a JSON-ready dict without empty fields."""
    return {key: value for key, value in asdict(record).items() if value not in (None, "", (), [], {})}


def group_of(turns: Iterable[Turn]) -> dict[str, str]:
    """Turn id -> conversation."""
    return {turn.id: turn.group for turn in turns}
