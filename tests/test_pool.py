"""Pooled collections: their content, when they are built, and the note in every table."""

import json
import logging
from dataclasses import replace

import pytest

from core.data_sources import DataSource
from core.errors import InputError
from core.json_records import read_records
from core.records import Passage
from tests.conftest import ROOT, settings_of, write_lines
from train.pipeline import run_pipeline
from train.pool import make_pools
from train.report_tables import label_of

FIXTURES = ROOT / "tests/fixtures/topiocqa"
# 101 to 105 are the gold passages; 200 to 203 share words with a question, 300 and 301 with none.
PASSAGES = {
    "300": "A harbour town with three bridges.",
    "101": "The Velmora Lighthouse is a red and white tower, 41 metres tall.",
    "102": "Ines Tarrow has kept the light since 1931.",
    "200": "Lighthouse keeping was a trade that ended with electric light.",
    "103": "Ines Tarrow was born in Brackwater.",
    "201": "The Pell lighthouse keeps no keeper: it was built without one.",
    "104": "The quillfish is a small fish of the river Oss.",
    "202": "Quillfish soup is eaten in spring.",
    "105": "Cold rivers with gravel beds.",
    "203": "Colour came late to the tower of Pell.",
    "301": "Snow fell on the pass for nine days.",
}
GOLD = {"101", "102", "103", "104", "105"}


@pytest.fixture
def source(tmp_path):
    corpus = write_lines(tmp_path / "corpus.jsonl", ({"id": doc, "text": text} for doc, text in PASSAGES.items()))
    test, qrels = (str(FIXTURES / f"topiocqa_{name}.json") for name in ("dev", "all_history_dev"))
    return DataSource("", "topiocqa", test=test, qrels=qrels, corpus=corpus)


@pytest.fixture
def make(tmp_path):
    """A function that builds the pool of a data set, and returns its file."""

    def make_pool(source, size=1, *flags):
        settings = settings_of("--run.dir", tmp_path / "run", "--data.pool", size, *flags)
        (pooled,) = make_pools([source], settings)
        assert replace(pooled, corpus=source.corpus) == source
        assert pooled.corpus == str(tmp_path / "run/data/pool.jsonl")
        return tmp_path / "run/data/pool.jsonl"

    return make_pool


def ids_of(pool):
    return [passage.id for _, passage in read_records(Passage, pool)]


def test_gold_passages_and_what_bm25_retrieves_beside_them(source, make):
    ids = ids_of(make(source))
    assert ids == [doc for doc in PASSAGES if doc in ids]  # in the order of the collection
    assert GOLD <= set(ids)  # 105 shares no word with its question
    # "who keeps the velmora lighthouse": 101 is no gold passage of this turn, and the best that is not
    # "what is a quillfish": 202; "and what colour is the tower": 203
    assert set(ids) - GOLD == {"202", "203"}


def test_more_passages_and_the_rewrite(source, make, tmp_path):
    turn = {"id": "a_1", "history": [], "question": "who keeps it", "rewrite": "who keeps the lighthouse of Pell"}
    test = write_lines(tmp_path / "turns.jsonl", [turn | {"relevant": {"201": 1}}])
    # The question, "keep" after stop words and stems, retrieves the gold passage 201 and 200; the rewrite, "keep",
    # "lighthous" and "pell", retrieves these, 101 ("lighthous") and 203 ("pell", in fewer passages: worth more).
    assert set(ids_of(make(DataSource("", "records", test=test, corpus=source.corpus), 2))) == {"200", "201", "203"}


def test_it_is_made_once_and_never_from_something_else(source, make):
    pool = make(source)
    before = pool.stat().st_mtime_ns
    assert make(source).stat().st_mtime_ns == before
    with pytest.raises(InputError, match="pool.jsonl was built from other inputs: `size` was 1, is 3"):
        make(source, 3)
    with pytest.raises(InputError, match="`retrieval.b` was 0.4, is 0.75"):
        make(source, 1, "--retrieval.b", "0.75")
    with pytest.raises(InputError, match="`retrieval.bm25_variant` was 'lucene', is 'plus'"):
        make(source, 1, "--retrieval.bm25_variant", "plus")
    pool.with_suffix(".json").write_text("{}")
    with pytest.raises(InputError, match="pool.json is damaged .`plan` is missing."):
        make(source)


def test_a_pool_without_its_note_is_made_again(source, make):
    pool = make(source)
    whole = pool.read_text()
    pool.with_suffix(".json").unlink()
    pool.write_text(whole[:-20])
    assert make(source).read_text() == whole


# ------------------------------------------------------------------ evaluation


@pytest.fixture
def evaluate(source, tmp_path):
    """A function that evaluates some systems, without answers."""
    files = [f"--data.{name}={getattr(source, name)}" for name in ("test", "qrels", "corpus")]
    flags = ["--run.only", "evaluation", "--evaluation.answers", "false", "--data.format", "topiocqa", *files]

    def run(*more):
        run_pipeline(settings_of("--run.dir", tmp_path / "run", *flags, *more))
        return json.loads((tmp_path / "run/evaluation/metrics.json").read_text())

    return run


def test_evaluation_with_a_pool_needs_no_model_and_says_pooled(evaluate, tmp_path, caplog):
    caplog.set_level(logging.INFO, "rewriter")
    metrics = evaluate("--evaluation.systems", "[original,history]", "--data.pool", "1")
    assert metrics["pooled"] is True and metrics["turns"] == {"evaluated": 6, "total": 6, "answered": 5}
    assert list(metrics["by_kind"]) == ["first", "follow_up", "switch", "return"]
    depths = {depth: part["turns"] for depth, part in metrics["by_depth"].items()}
    assert depths == {"1": 2, "2": 2, "3": 1, "4-6": 1}
    table = (tmp_path / "run/evaluation/table.md").read_text()
    assert table.startswith(label_of({"pooled": True})) and "*pooled*" in caplog.text
    assert "pool: 7 of 11 passages, 5 of them gold" in caplog.text


def test_a_pool_skips_bad_passages_if_the_run_does(evaluate, source):
    with open(source.corpus, "a") as corpus:
        corpus.write('{"id": "400", "text": ""}\n')
    flags = ["--evaluation.systems", "[original]", "--data.pool", "1"]
    with pytest.raises(InputError, match="`--data.on_bad skip` skips such records"):
        evaluate(*flags)
    assert evaluate(*flags, "--data.on_bad", "skip")["turns"]["total"] == 6


def test_a_collection_that_is_a_pool_already_is_labelled_too(evaluate, tmp_path):
    assert evaluate("--evaluation.systems", "[original]", "--data.pool", "0")["pooled"] is True
    assert not (tmp_path / "run/data").exists()


def test_without_a_model_a_system_that_rewrites_is_refused(evaluate):
    with pytest.raises(InputError, match="`rewriter.model` is not set"):
        evaluate("--evaluation.systems", "[base]")
