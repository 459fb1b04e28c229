"""The rankings stage over a collection: what it records, and that it is passed over the second time."""

import hashlib
import json
import logging

import pytest

from core.artifacts import Stage, completed
from core.cli import read_settings
from core.errors import InputError
from retrieval.rankings import make_rankings
from tests.conftest import lines

CORPUS = "".join(json.dumps({"id": f"d{i}", "text": f"passage about thing{i}"}) + "\n" for i in range(5))


@pytest.fixture
def run(tmp_path):
    """A run folder with candidates, and the settings of its rankings."""
    (tmp_path / "corpus.jsonl").write_text(CORPUS)
    candidates = Stage(tmp_path / "run/candidates", {}, {})
    candidates.append({"id": f"t{i}", "candidates": [{"query": f"thing{i}"}, {"query": "zebra"}]} for i in range(3))
    candidates.finish({})

    def settings(*more):
        flags = ["--run.dir", str(tmp_path / "run"), "--rewriter.model", "m", "--data.corpus"]
        return read_settings("", [*flags, str(tmp_path / "corpus.jsonl"), *more])

    return settings


def test_rankings_of_every_candidate(run):
    stage = make_rankings(run("--retrieval.analyzer", "plain"))
    found = {record["id"]: record["rankings"] for record in lines(stage.folder)}
    assert [[[doc for doc, _ in ranking] for ranking in found[f"t{i}"]] for i in range(3)] == [
        [["d0"], []], [["d1"], []], [["d2"], []],
    ]  # fmt: skip


def test_the_record_names_collection_engine_and_analyser(run):
    stage = make_rankings(run())
    made = json.loads(stage.manifest_file.read_text())
    assert made["inputs"]["corpus"] == hashlib.sha256(CORPUS.encode()).hexdigest()
    recorded = {name: made["settings"][name] for name in ("engine", "analyzer", "bm25_variant", "k1", "b", "k")}
    assert recorded == {
        "engine": "rank_bm25", "analyzer": "english", "bm25_variant": "lucene", "k1": 0.9, "b": 0.4, "k": 3,
    }  # fmt: skip


def test_auto_and_the_engine_that_it_stands_for_are_one(run, caplog):
    caplog.set_level(logging.INFO, "rewriter")
    stage = make_rankings(run())
    make_rankings(run("--retrieval.engine", "rank_bm25", "--retrieval.depth", "7"))
    assert "rankings: complete, nothing to do" in caplog.text
    with pytest.raises(InputError, match="`settings.engine` was 'rank_bm25', is 'bm25s'"):
        make_rankings(run("--retrieval.engine", "bm25s"))
    assert completed(stage.folder).complete


def test_rewrites_that_find_nothing_stop_the_run_with_an_example(run, tmp_path):
    settings = run()
    (tmp_path / "corpus.jsonl").write_text('{"id": "d0", "text": "rivers and lakes"}\n')
    for _ in range(2):  # and the same command stops there again
        with pytest.raises(InputError, match="not one of 6 rewrites has a document; one of them is 'thing0'"):
            make_rankings(settings)
