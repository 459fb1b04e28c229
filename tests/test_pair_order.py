"""How rewards order the candidates of a turn, compared with their reciprocal ranks."""

import pytest

from core.errors import InputError
from core.records import Candidate, Score, TokenStats, TurnRecord
from core.stages import Stage
from scoring.pair_order import order_table, pair_order, pair_orders
from scoring.validity import main
from tests.conftest import call, settings_of, write_lines


def test_pairs_by_hand():
    turns = [
        [(3.0, 0.5), (1.0, 1.0), (1.0, 0.0)],  # wrong, right, tie
        [(2.0, 1.0), (None, 0.5), (1.0, 1.0)],  # equal ranks: no pair
        [(None, 1.0)],  # no scores
    ]
    order = pair_order(turns)
    assert order["pairs"] == 3 and order["share"] == 0.5
    assert order["best"] == pytest.approx((0.5 + 1.0) / 2)
    assert order["worst"] == pytest.approx((0.5 + 1.0) / 2)  # mean of the two lowest, .5; then 1
    assert order["mean"] == pytest.approx((0.5 + 1.0) / 2)


def test_nothing_to_order():
    assert pair_order([]) == {"pairs": 0, "share": None, "best": None, "worst": None, "mean": None}


# ------------------------------------------------------------------ from the records of a run


def stats(h0, hd):
    """Statistics of one token."""
    return TokenStats(("x",), (h0,), (hd,), (-1.0,), (-0.5,))


@pytest.fixture
def run(tmp_path):
    """A function that writes the scores of one turn, and returns the settings of its run."""
    turn = {"id": "t", "history": [], "question": "Who?", "relevant": {"d1": 1}}
    train = write_lines(tmp_path / "turns.jsonl", [turn])
    texts = {"d0": "lake owl", "d1": "old barn owl"}
    corpus = write_lines(tmp_path / "corpus.jsonl", ({"id": doc, "text": text} for doc, text in texts.items()))

    def with_scores(*flags, scores=(None, None), lists=None):
        candidates = tuple(
            Candidate(query, query, -1.0, 2, list_id=list_id, score=score)
            for query, list_id, score in zip(("barn", "lake"), ("1", "2"), scores, strict=True)
        )
        stage = Stage(tmp_path / "run", "round-1/scores", {}, {}, TurnRecord)
        stage.write([TurnRecord("t", candidates=candidates, lists=lists or {})])
        stage.finish({"total": 1})
        return settings_of("--run.dir", tmp_path / "run", "--data.train", train, "--data.corpus", corpus, *flags)

    return with_scores


def test_the_reward_of_a_run(run):
    orders = pair_orders(run("--scoring.reward", "udcg", scores=(0.1, 0.7)))
    assert orders == {"udcg": {"pairs": 1, "share": 0.0, "best": 0.0, "worst": 1.0, "mean": 0.5}}
    cells = [cell.strip() for cell in order_table(orders).splitlines()[2].strip("|").split("|")]
    assert cells == ["udcg", "1", "0.000", "0.000", "1.000", "0.500"]


def test_every_grogu_reward_from_token_statistics(run):
    lists = {"1": Score(2.0, "x", stats=stats(3.0, 1.0)), "2": Score(1.0, "x", stats=stats(3.0, 2.0))}
    orders = pair_orders(run("--scoring.answer", "logged", lists=lists))
    assert set(orders) == {f"{name}@logged" for name in ("key_entropy", "entropy", "key_ppl", "ppl")}
    assert orders["key_entropy@logged"]["share"] == 1.0  # 3 - 1 over 3 - 2


def test_the_pool_of_a_run_is_searched(run, tmp_path):
    settings = run("--scoring.reward", "udcg", "--data.pool", "1", scores=(0.1, 0.7))
    pool = [{"id": "d0", "text": "barn"}, {"id": "d1", "text": "lake"}]  # in the collection, the texts are swapped
    write_lines(tmp_path / "run/data/pool.jsonl", pool)
    assert pair_orders(settings)["udcg"]["share"] == 1.0


def test_turns_without_labels_raise_an_error(run, tmp_path):
    settings = run(scores=(0.1, 0.7))
    write_lines(tmp_path / "turns.jsonl", [{"id": "t", "history": [], "question": "Who?"}])
    with pytest.raises(InputError, match="no training turn has `relevant` documents"):
        pair_orders(settings)


def test_limit_uses_the_first_turns_of_each_data_set(run, tmp_path):
    run("--scoring.reward", "udcg", scores=(0.1, 0.7))
    first = {"id": "s", "history": [], "question": "Which?", "relevant": {"d1": 1}}
    turns = [first, {"id": "t", "history": [], "question": "Who?", "relevant": {"d1": 1}}]
    train = write_lines(tmp_path / "turns.jsonl", turns)
    (tmp_path / "c.yaml").write_text(
        f"data: {{train: {train}, corpus: {tmp_path}/corpus.jsonl}}\nscoring: {{reward: udcg}}\n"
    )
    words = ["--config", tmp_path / "c.yaml", "--run", tmp_path / "run", "--output", tmp_path / "order"]
    call(main, *words)
    assert "| udcg     | 1 " in (tmp_path / "order/pair_order.md").read_text()
    call(main, *words, "--limit", "1")  # the turn with scores is the second
    assert "| udcg     | 1 " not in (tmp_path / "order/pair_order.md").read_text()
