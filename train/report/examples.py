"""Held-out turns and scored answers that a report shows in full."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.records import Candidate, Score, Turn, TurnRecord
from core.stages import load_stage
from retrieval.collection import Collection
from train.pairs import best_and_worst
from train.report.run_data import RunData

TOKEN_TURNS = 6  # turns whose scored answers are shown token by token
LONGEST = 600  # characters of a document


@dataclass
class Example:
    """A held-out turn. `outcome`: `won`, `lost` or `same`, by the verdict's measure against its baseline."""

    turn: Turn
    outcome: str
    systems: list[dict[str, Any]]


@dataclass
class Token:
    """A token of a scored answer: its text, the entropies without and with documents in nats, and whether it is key.
    `strength`: |H_0 - H_D| from 0 to 1, relative to the largest of the answer."""

    text: str
    h0: float
    hd: float
    key: bool
    strength: float

    @property
    def difference(self) -> float:
        return self.h0 - self.hd


@dataclass
class ScoredAnswer:
    """The best or the worst candidate of a training turn, and the answer that scored it."""

    side: str
    candidate: Candidate
    score: Score
    tokens: list[Token]


def select_examples(
    run: RunData, turns: Mapping[str, Turn], collections: Mapping[str, Collection], k: int, limit: int
) -> list[Example]:
    """Held-out turns: as many that were won as that were lost, the clearest first, and some that stayed the same.

    Args:
        run: with an evaluation.
        turns: id -> held-out turn.
        collections: data set -> its collection.
        k: documents to show.
        limit: most examples.
    """
    final, baseline, measure = run.final, run.baseline, run.measure
    changes: dict[str, float] = {}
    for name in turns:
        values = [run.per_turn.get(system, {}).get(name, {}).get(measure) for system in (final, baseline)]
        changes[name] = 0.0 if None in values else values[0] - values[1]
    won = sorted((n for n in changes if changes[n] > 0), key=lambda n: -changes[n])
    lost = sorted((n for n in changes if changes[n] < 0), key=lambda n: changes[n])
    same = [n for n in changes if changes[n] == 0]
    third = -(-limit // 3)
    chosen = [*won[:third], *lost[:third], *same[:third]]
    chosen += [n for n in (*won[third:], *lost[third:], *same[third:])][: limit - len(chosen)]
    outcomes = dict.fromkeys(won, "won") | dict.fromkeys(lost, "lost") | dict.fromkeys(same, "same")
    return [
        Example(turns[name], outcomes[name], systems_of(run, turns[name], collections, k)) for name in chosen[:limit]
    ]


def systems_of(run: RunData, turn: Turn, collections: Mapping[str, Collection], k: int) -> list[dict[str, Any]]:
    """Query, documents, answer and measures of each system for one turn."""
    rows = []
    for name, result in run.records[turn.id].systems.items():
        ids = [hit.doc for hit in result.hits[:k]]
        texts = collections[turn.dataset].contents(ids)
        documents = [
            {"id": doc, "text": shorten(text), "relevant": turn.relevant.get(doc, 0) >= 1}
            for doc, text in zip(ids, texts, strict=True)
        ]
        value = run.per_turn[name][turn.id].get(run.measure)
        rows.append({"name": name, "result": result, "documents": documents, "value": value})
    return rows


def shorten(text: str) -> str:
    return text if len(text) <= LONGEST else text[:LONGEST] + " …"


def select_tokens(run: RunData, turns: Mapping[str, Turn]) -> list[tuple[Turn, list[ScoredAnswer]]]:
    """Training turns of the first round whose best and worst candidate have token statistics, from the largest gap to
    the smallest."""
    if not run.rounds or "scores" not in run.rounds[0].counts:
        return []
    pairs: list[tuple[float, TurnRecord]] = []
    for record in load_stage(run.path, "round-1/scores", TurnRecord):
        pair = best_and_worst(record.candidates)
        if not isinstance(pair, str) and all(record.lists[each.list_id].stats for each in pair):
            pairs.append((pair[0].score - pair[1].score, record))
    pairs.sort(key=lambda pair: (-pair[0], pair[1].id))
    step = max(1, len(pairs) // TOKEN_TURNS)
    return [(turns[record.id], scored_answers(record)) for _, record in pairs[::step][:TOKEN_TURNS]]


def scored_answers(record: TurnRecord) -> list[ScoredAnswer]:
    """The best and the worst candidate of a turn with the tokens of their answers."""
    answers = []
    for side, candidate in zip(("best", "worst"), best_and_worst(record.candidates), strict=True):
        score = record.lists[candidate.list_id]
        answers.append(ScoredAnswer(side, candidate, score, tokens_of(score)))
    return answers


def tokens_of(score: Score) -> list[Token]:
    """The tokens of a scored answer."""
    stats, key = score.stats, {*score.key}
    largest = max((abs(a - b) for a, b in zip(stats.h0, stats.hd, strict=True)), default=0.0) or 1.0
    columns: Sequence[Any] = list(zip(stats.tokens, stats.h0, stats.hd, strict=True))
    return [Token(text, h0, hd, i in key, abs(h0 - hd) / largest) for i, (text, h0, hd) in enumerate(columns)]
