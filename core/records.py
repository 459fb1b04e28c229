"""All record types, in the order of the data flow: turns and passages; candidates with their documents and scores;
preference pairs.

A turn's record grows from stage to stage: `TurnRecord` contains its candidates; `rankings` adds `documents` to each,
`scores` adds `score` or `error`. Files are checked against these types when they are read (`core.json_records`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field, Strict
from typing_extensions import TypedDict

from core.schema import Text


def check_printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("a string without control characters")
    return text


Identifier = Annotated[Text, AfterValidator(check_printable)]
Grade = Annotated[int, Strict(), Field(ge=-1000, le=1000)]


class Message(TypedDict):
    """A chat message."""

    role: Literal["system", "user", "assistant"]
    content: str


class HistoryMessage(TypedDict):
    """A message of a logged conversation."""

    role: Literal["user", "assistant"]
    content: str


@dataclass(frozen=True)
class Turn:
    """One question of a conversation; a line of `turns.jsonl`.

    Training needs `id`, `history` and `question` only. `answers`, `relevant` (document id -> grade, 1 and above is
    relevant) and `rewrite` (a stand-alone question written by a person) are for evaluation and rewards that need
    labels. `conversation` groups turns; without it, the group is the part of the id before the last `_`. `kind`
    (`first`, `follow_up`, `switch`, `return`) splits the result table. `dataset` is the name of its set in
    `data.sets`. `reply` is the assistant's reply to this turn in the chat log (`scoring.answer: logged`).
    """

    id: Identifier
    history: tuple[HistoryMessage, ...]
    question: Text
    answers: tuple[Text, ...] = ()
    relevant: dict[str, Grade] = field(default_factory=dict)
    rewrite: str | None = None
    conversation: str = ""
    dataset: str = ""
    kind: str = ""
    reply: str = ""

    @property
    def group(self) -> str:
        """The conversation of the turn: the unit of resampling in significance tests.

        Data sets may use the same name for different conversations, so the name of the set is part of it.
        """
        conversation = self.conversation or self.id.rpartition("_")[0] or self.id
        return f"{self.dataset}/{conversation}" if self.dataset else conversation

    @property
    def gold(self) -> list[str]:
        """The relevant documents: those with grade 1 or above."""
        return [doc for doc, grade in self.relevant.items() if grade >= 1]

    @property
    def depth(self) -> int:
        """The number of the turn in its conversation: 1 for a first question."""
        return 1 + sum(message["role"] == "user" for message in self.history)

    @property
    def logged_reply(self) -> str:
        """The assistant's reply in the log, else the first reference answer, else an empty string."""
        return self.reply or next(iter(self.answers), "")


@dataclass(frozen=True)
class Passage:
    """One document of the collection; a line of `corpus.jsonl`."""

    id: Identifier
    text: Text
    title: str = ""

    @property
    def content(self) -> str:
        """The text that is indexed and that the generator reads: the title, if any, and the text."""
        return f"{self.title}\n{self.text}" if self.title and not self.text.startswith(self.title) else self.text


class Hit(NamedTuple):
    """A retrieved document and its retrieval score."""

    doc: str
    score: float


@dataclass(frozen=True)
class TokenStats:
    """Statistics of the tokens of one answer, with and without the documents (lists of length T, in nats).

    `h0`, `hd`: entropy of the next-token distribution without and with the documents. `logp0`, `logpd`:
    log-probability of the answer token without and with them.
    """

    tokens: tuple[str, ...]
    h0: tuple[float, ...]
    hd: tuple[float, ...]
    logp0: tuple[float, ...]
    logpd: tuple[float, ...]


@dataclass(frozen=True)
class Score:
    """The reward of one document list for one turn. If there is no reward, `value` is None and `error` is the reason.

    GROGU rewards add the `answer` and its source (`generated` or `logged`), the positions of its `key` tokens and the
    `rule` that chose them, whether it reads like an abstention, whether it `ended`, and how many documents were `cut`
    because they did not fit. UDCG adds `no_res`, the probability of abstaining from each document alone. `weighted`
    adds the values of its `parts`.
    """

    value: float | None = None
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
class Candidate:
    """One distinct rewrite of a turn.

    `query` is its search query. `logprob` is the sum of the raw log-probabilities of its tokens (before temperature)
    in nats, including the end-of-turn token, and `tokens` is their number; a server may compute them differently or
    not at all. `count` is the number of samples with this text. `source` is `sample`, or `question` or `history` for
    a query that was included without sampling and has no log-probability. The stage `rankings` adds `documents`, best
    first; `scores` adds `score` or `error`, and `list_id`, the key of its document list in `TurnRecord.lists`.
    """

    text: str
    query: str
    logprob: float | None = None
    tokens: int = 0
    count: int = 1
    source: str = "sample"
    documents: tuple[Hit, ...] = ()
    list_id: str = ""
    score: float | None = None
    error: str = ""


@dataclass(frozen=True)
class TurnRecord:
    """A turn in the stages `candidates`, `rankings` and `scores`.

    `counts` counts what sampling dropped. `lists` contains the scores that candidates with the same documents share.
    """

    id: str
    dataset: str = ""
    candidates: tuple[Candidate, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    lists: dict[str, Score] = field(default_factory=dict)


@dataclass(frozen=True)
class Pair:
    """A preference pair in the format of TRL: `prompt`, `chosen` and `rejected` are lists of messages."""

    id: str
    prompt: list[Message]
    chosen: list[Message]
    rejected: list[Message]
    score_chosen: float
    score_rejected: float
    gap: float
    reward: str


@dataclass(frozen=True)
class SystemResult:
    """The result of one system of the evaluation for one turn. `rewrite` is set if it differs from `query`; `answer`
    and `key_entropy` if the generator answered; `reward` if the run's reward was computed."""

    query: str
    hits: tuple[Hit, ...] = ()
    rewrite: str | None = None
    answer: str | None = None
    key_entropy: float | None = None
    reward: float | None = None


@dataclass(frozen=True)
class EvaluationRecord:
    """A held-out turn in the stage `evaluation`: system -> result, and the reward of documents retrieved for another
    conversation, which should be near zero."""

    id: str
    systems: dict[str, SystemResult] = field(default_factory=dict)
    shuffled_reward: float | None = None


@dataclass(frozen=True)
class CheckedQuestion:
    """A question of `scoring.validity`: for each of its document lists, the generator's answer and the value of each
    reward; and reward -> seconds per list."""

    id: str
    answers: dict[str, str]
    values: dict[str, dict[str, float | None]]
    seconds: dict[str, float]


@dataclass(frozen=True)
class GenerationInput:
    """Input of the generator: a question in its conversation, and documents in rank order."""

    history: tuple[tuple[str, str], ...]  # (role, content), hashable
    question: str
    documents: tuple[str, ...]

    @classmethod
    def of(cls, history: Sequence[Message], question: str, documents: Sequence[str]) -> "GenerationInput":
        return cls(tuple((m["role"], m["content"]) for m in history), question, tuple(documents))

    @property
    def messages(self) -> list[Message]:
        return [{"role": role, "content": content} for role, content in self.history]

    @property
    def without_documents(self) -> "GenerationInput":
        return GenerationInput(self.history, self.question, ())

    @property
    def single_documents(self) -> list["GenerationInput"]:
        """The same question with each document alone."""
        return [GenerationInput(self.history, self.question, (document,)) for document in self.documents]


@dataclass(frozen=True)
class GeneratedAnswer:
    """An answer with its token statistics. `cut` documents did not fit the context; `ended` is True if the model ended
    the answer itself. The answer is empty if even the question alone does not fit."""

    answer: str
    stats: TokenStats
    cut: int
    ended: bool


@dataclass(frozen=True)
class SampledAnswer:
    """A sampled answer and the mean log-probability of its tokens, in nats."""

    text: str
    logprob: float


@dataclass(frozen=True)
class RewardInput:
    """One document list with everything a reward may need.

    `relevant` states for each document whether it contains the answer (None if unknown). `answers` are reference
    answers, `scores` the retriever's scores. `reply` is the assistant's reply in the chat log, empty if there is none.
    """

    generation_input: GenerationInput
    relevant: tuple[bool, ...] | None = None
    answers: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    reply: str = ""
