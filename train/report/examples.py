"""Select the held-out turns and scored answers that a report shows in full."""

from typing import Any

from core.records import Score, Turn, TurnRecord
from core.stages import load_stage
from train.pairs import best_and_worst
from train.report.run_data import RunData

TOKEN_TURNS = 6  # turns with scored answers to show token by token
LONGEST = 600  # characters to show of a document


def select_examples(data: RunData, limit: int) -> list[dict[str, Any]]:
    """Select up to `limit` held-out turns: an equal share of won, lost and unchanged ones, the clearest first.

    Returns:
        For each turn, `turn`, `outcome` (`won`, `lost` or `same`: the final system's value of the verdict's measure
        against the baseline's) and `systems`. Empty without an evaluation.
    """
    if not data.metrics:
        return []
    changes: dict[str, float] = {}
    for turn in data.run.test_turns:
        lines = [data.per_turn.get(system, {}).get(turn.id, {}) for system in (data.final, data.baseline)]
        values = [line.get(data.measure) for line in lines]
        changes[turn.id] = 0.0 if None in values else values[0] - values[1]
    outcomes = {
        "won": sorted((n for n in changes if changes[n] > 0), key=lambda n: -changes[n]),
        "lost": sorted((n for n in changes if changes[n] < 0), key=lambda n: changes[n]),
        "same": [n for n in changes if changes[n] == 0],
    }
    third = -(-limit // 3)
    chosen = [(name, outcome) for outcome, names in outcomes.items() for name in names[:third]]
    chosen += [(name, outcome) for outcome, names in outcomes.items() for name in names[third:]]
    turns = data.run.test_turns.by_id
    return [
        {"turn": turns[name], "outcome": outcome, "systems": systems_of(data, turns[name])}
        for name, outcome in chosen[:limit]
    ]


def systems_of(data: RunData, turn: Turn) -> list[dict[str, Any]]:
    """For each system, the query, documents, answer and value of the verdict's measure for one turn."""
    rows = []
    for name, result in data.records[turn.id].systems.items():
        ids = [hit.doc for hit in result.hits[: data.run.settings.retrieval.k]]
        texts = data.run.collections[turn.dataset].contents(ids)
        documents = [
            {
                "id": doc,
                "text": text if len(text) <= LONGEST else text[:LONGEST] + " …",
                "relevant": doc in turn.gold,
            }
            for doc, text in zip(ids, texts, strict=True)
        ]
        value = data.per_turn[name][turn.id].get(data.measure)
        rows.append({"name": name, "result": result, "documents": documents, "value": value})
    return rows


def select_tokens(data: RunData) -> list[tuple[Turn, list[dict[str, Any]]]]:
    """Select training turns of the first round from the largest gap to the smallest.

    Returns:
        Turns whose best and worst candidates have token statistics, and for both candidates `side`, `candidate`,
        `score` and the answer's `tokens`.
    """
    if "round-1/scores" not in data.stages:
        return []
    pairs = []
    for record in load_stage(data.run.path, "round-1/scores", TurnRecord):
        pair = best_and_worst(record.candidates)
        if not isinstance(pair, str) and all(record.lists[candidate.list_id].stats for candidate in pair):
            pairs.append((pair[1].score - pair[0].score, record.id, pair, record.lists))
    pairs.sort(key=lambda entry: entry[:2])
    step = max(1, len(pairs) // TOKEN_TURNS)
    return [
        (
            data.run.train_turns.by_id[name],
            [
                {"side": side, "candidate": c, "score": lists[c.list_id], "tokens": tokens_of(lists[c.list_id])}
                for side, c in zip(("best", "worst"), pair, strict=True)
            ],
        )
        for _, name, pair, lists in pairs[::step][:TOKEN_TURNS]
    ]


def tokens_of(score: Score) -> list[dict[str, Any]]:
    """For each token of a scored answer: text, entropies without and with documents in nats, their difference, whether
    it is key, and `strength`, the absolute difference relative to the largest in the answer (0 to 1)."""
    stats = score.stats
    differences = [h0 - hd for h0, hd in zip(stats.h0, stats.hd, strict=True)]
    largest = max(map(abs, differences), default=0.0) or 1.0
    return [
        {"text": text, "h0": stats.h0[i], "hd": stats.hd[i], "difference": differences[i], "key": i in score.key,
         "strength": abs(differences[i]) / largest}
        for i, text in enumerate(stats.tokens)
    ]  # fmt: skip
