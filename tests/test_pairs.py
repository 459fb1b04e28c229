"""Pairs computed by hand: best and worst, reasons, the gap filter, the stage."""

import re

import pytest

from core.errors import InputError
from core.records import Candidate, Pair, Turn, TurnRecord
from core.settings import PairSettings
from core.stages import Stage, load_stage
from rewriter.conversations import TurnSet
from rewriter.prompts import RewritePrompt
from tests.conftest import settings_of
from train.pairs import best_and_worst, make_pairs, select_pairs
from train.run import Run


def candidates_of(*scores, texts=None, counts=None):
    """Candidates with these scores, and with log-probabilities that decrease with the position."""
    texts = texts or [f"query {i}" for i in range(len(scores))]
    counts = counts or [1] * len(scores)
    return tuple(
        Candidate(text, text, -1.0 - i, 3, count, score=score)
        for i, (text, count, score) in enumerate(zip(texts, counts, scores, strict=True))
    )


def scored(name, *scores):
    return Turn(name, (), "q?"), TurnRecord(name, candidates=candidates_of(*scores))


TURNS = [
    scored("a", 0.0, 1.0), scored("b", 0.0, 0.1), scored("c", 0.0, 0.5), scored("d", 0.0, 0.3), scored("e", 0.1, 0.1),
]  # fmt: skip


def test_best_and_worst():
    candidates = candidates_of(0.2, 0.9, None, -0.4)
    assert best_and_worst(candidates) == (candidates[1], candidates[3])
    assert best_and_worst(candidates_of(0.2, None)) == "fewer than two scored candidates"
    assert best_and_worst(candidates_of(0.2, 0.2)) == "equal scores"
    assert best_and_worst(candidates_of(0.2, 0.9, texts=["Who?", "who"])) == "same text"


@pytest.mark.parametrize(("counts", "expected"), [([1, 3, 1, 2], (1, 3)), ([1, 1, 1, 1], (0, 2))])
def test_among_equal_scores_the_likelier_candidate(counts, expected):
    candidates = candidates_of(0.9, 0.9, 0.1, 0.1, counts=counts)
    assert best_and_worst(candidates) == tuple(candidates[i] for i in expected)


def select(turns, **options):
    return select_pairs(turns, PairSettings(**options), "key_entropy", RewritePrompt())


def test_the_filter_by_hand():
    pairs, dropped = select(TURNS, drop_fraction=0.5)
    assert [pair.id for pair in pairs] == ["a", "c"]
    assert dropped == {"equal scores": 1, "among the smallest gaps": 2}
    pairs, dropped = select(TURNS, drop_fraction=0.5, min_gap=0.7)
    assert [pair.id for pair in pairs] == ["a"] and dropped["gap below min_gap"] == 1
    assert len(select(TURNS, drop_fraction=0.0)[0]) == 4
    assert select(TURNS, drop_fraction=1.0)[0] == []


def test_a_pair_is_what_trl_reads():
    (pair,), _ = select([scored("a", 0.25, 1.0)], drop_fraction=0.0)
    assert pair.prompt[-1] == {"role": "user", "content": "User: q?"}
    assert pair.chosen == [{"role": "assistant", "content": "query 1"}]
    assert pair.rejected == [{"role": "assistant", "content": "query 0"}]
    assert (pair.score_chosen, pair.score_rejected, pair.gap, pair.reward) == (1.0, 0.25, 0.75, "key_entropy")


# ------------------------------------------------------------------ the stage


def pairs_stage(run_dir, scored_turns, drop_fraction):
    scores = Stage(run_dir, "round-1/scores", {}, {}, TurnRecord)
    scores.write(record for _, record in scored_turns)
    scores.finish({"total": len(scored_turns)})
    run = Run(settings_of("--run.dir", run_dir, "--pairs.drop_fraction", drop_fraction, "--scoring.reward", "ppl"), [])
    run.train_turns = TurnSet(tuple(turn for turn, _ in scored_turns), "fingerprint")
    return make_pairs(run, "round-1/pairs", scores)


def test_the_stage_counts_what_it_drops(tmp_path):
    stage = pairs_stage(tmp_path, TURNS, 0.5)
    assert [pair.id for pair in load_stage(tmp_path, "round-1/pairs", Pair)] == ["a", "c"]
    dropped = {"equal scores": 1, "among the smallest gaps": 2}
    assert stage.manifest["counts"] == {"total": 2, "turns": 5, "dropped": dropped, "mean_gap": 0.75}
    assert {pair.reward for pair in stage} == {"ppl"}


@pytest.mark.parametrize(
    ("scored_turns", "drop_fraction", "expected"),
    [
        ([scored("a", 0.1, 0.1)], 0.5, "1 turns (1 equal scores); raise `rewriter.n` or `rewriter.temperature`"),
        ([scored("a", 0.1)], 0.5, "1 turns (1 fewer than two scored candidates); raise `rewriter.n`"),
        ([scored("a", 0.1, 0.4)], 1.0, "1 turns (1 among the smallest gaps); lower `pairs.drop_fraction`"),
    ],
)
def test_no_pair_left_gives_the_reason_and_what_to_change(tmp_path, scored_turns, drop_fraction, expected):
    with pytest.raises(InputError, match=re.escape(f"no preference pair is left of {expected}")):
        pairs_stage(tmp_path, scored_turns, drop_fraction)
