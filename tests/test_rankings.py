"""The rankings stage: its records, and that a second run skips it."""

import hashlib
import logging

import pytest

from core.errors import InputError
from core.records import Candidate, Hit, TurnRecord
from core.settings import RetrievalSettings, RunSettings
from core.stages import Stage, load_stage
from retrieval.collection import open_collection
from retrieval.rankings import make_rankings
from tests.conftest import write_lines

NAME = "round-1/rankings"


@pytest.fixture
def rank(tmp_path):
    """A function that ranks the candidates of three turns, with some `retrieval` settings."""
    corpus = write_lines(tmp_path / "corpus.jsonl", ({"id": f"d{i}", "text": f"about thing{i}"} for i in range(5)))
    candidates = Stage(tmp_path / "run", "round-1/candidates", {}, {}, TurnRecord)
    zebra = Candidate("zebra", "zebra", -1.0, 2)
    candidates.write(TurnRecord(f"t{i}", candidates=(Candidate("x", f"thing{i}", -1.0, 2), zebra)) for i in range(3))
    candidates.finish({"total": 3})

    def make(corpus=corpus, **options):
        run, collections = RunSettings(dir=str(tmp_path / "run")), {"": open_collection(corpus)}
        return make_rankings(run, NAME, candidates, RetrievalSettings(**options), collections)

    return make


def test_candidates_keep_their_fields_and_gain_documents(rank):
    for i, record in enumerate(rank(analyzer="plain")):
        first, second = record.candidates
        assert (record.id, first.text, first.query) == (f"t{i}", "x", f"thing{i}")
        assert [type(hit) for hit in first.documents] == [Hit] and first.documents[0].doc == f"d{i}"
        assert second.documents == ()


def test_the_manifest_names_collection_engine_and_analyzer(rank, tmp_path):
    manifest = rank().manifest
    assert manifest["inputs"]["corpus"] == hashlib.sha256((tmp_path / "corpus.jsonl").read_bytes()).hexdigest()
    expected = {"engine": "rank_bm25", "analyzer": "english", "bm25_variant": "lucene", "k1": 0.9, "b": 0.4, "k": 3}
    assert manifest["settings"] == expected
    assert manifest["counts"] == {"total": 3, "rankings": 6, "distinct": 6, "empty": 3}


def test_auto_and_the_engine_that_it_stands_for_are_one(rank, tmp_path, caplog):
    caplog.set_level(logging.INFO, "rewriter")
    rank()
    rank(engine="rank_bm25", depth=7)
    assert f"{NAME}: complete, nothing to do" in caplog.text
    with pytest.raises(InputError, match="`settings.engine` was 'rank_bm25', is 'bm25s'"):
        rank(engine="bm25s")
    assert load_stage(tmp_path / "run", NAME, TurnRecord).complete


def test_rewrites_that_find_nothing_stop_the_run_with_an_example(rank, tmp_path):
    other = write_lines(tmp_path / "other.jsonl", [{"id": "d0", "text": "rivers and lakes"}])
    for _ in range(2):  # the same command stops there again
        with pytest.raises(InputError, match="none of 6 rewrites retrieved a document, for example 'thing0'"):
            rank(other)
