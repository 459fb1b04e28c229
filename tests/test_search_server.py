"""The `http` engine against a real HTTP server on this machine: answers, failures, credentials, TLS."""

import base64
import json
import shutil
import subprocess

import pytest

from core.errors import InputError
from core.records import Hit, Passage
from core.settings import RetrievalSettings
from retrieval import search_server as module
from retrieval.analyzer import plain
from retrieval.bm25 import RankBM25
from retrieval.search_server import BATCH, SearchServer
from tests.fake_search_server import INDEX, FakeSearch, running

PASSAGES = [Passage("a", "the fox"), Passage("b", "the sea")]


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    """Short waits, no proxy, and only the credentials of the test."""
    monkeypatch.setattr(module, "FIRST_WAIT", 0.01)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("SEARCH_API_KEY", "SEARCH_USER", "SEARCH_PASSWORD", "SEARCH_CA_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server():
    with running(FakeSearch(RankBM25(PASSAGES, plain))) as state:
        yield state


def engine(server, **options):
    return SearchServer(RetrievalSettings(engine="http", url=server.url, **({"index": INDEX} | options)))


def test_the_requests(server):
    hits = engine(server, fields=["title^2", "text"]).search(["fox", " ", "sea"], 7)
    assert [[hit.doc for hit in ranking] for ranking in hits] == [["a"], [], ["b"]]
    headers, lines = server.requests[0]
    assert headers["Content-Type"] == "application/x-ndjson" and "Authorization" not in headers
    match = {"multi_match": {"query": "sea", "fields": ["title^2", "text"]}}
    assert lines[2]["index"] == INDEX and lines[3] == {"size": 7, "_source": False, "query": match}
    assert len(server.requests) == 1 and len(lines) == 4


def test_many_queries_go_in_batches(server):
    hits = engine(server).search(["fox", "sea"] * BATCH, 1)
    assert [ranking[0].doc for ranking in hits] == ["a", "b"] * BATCH
    assert [len(lines) // 2 for _, lines in server.requests] == [BATCH, BATCH]


def part(**fields):
    return 200, json.dumps({"responses": [{"hits": {"hits": []}, "status": 200} | fields]})


@pytest.mark.parametrize(
    "reply",
    [
        (503, "busy"),
        (429, "{}"),
        part(error={"type": "es_rejected_execution_exception"}, status=429),
        part(timed_out=True),
        part(_shards={"failed": 1}),
    ],
)
def test_requests_to_a_busy_server_are_retried(server, reply):
    server.replies = [reply, reply]
    assert engine(server).search(["sea"], 1)[0][0].doc == "b"
    assert len(server.requests) == 3


def test_a_server_that_stays_busy_is_given_up(server):
    server.replies = [(503, "busy")] * 9
    with pytest.raises(InputError, match=rf"{server.url}, index `{INDEX}`: no answer to 3 requests \(status 503\)"):
        engine(server, retries=2).search(["sea"], 1)
    assert len(server.requests) == 3


def test_an_unreachable_server_is_named():
    settings = RetrievalSettings(engine="http", url="http://127.0.0.1:9", index=INDEX, retries=1)
    with pytest.raises(InputError, match="127.0.0.1:9.*no answer to 2 requests.*Is the server up"):
        SearchServer(settings).search(["sea"], 1)


def test_a_wrong_index_is_named_at_once(server):
    with pytest.raises(InputError, match="index `other`: status 404; is `retrieval.index` right.*no such index"):
        engine(server, index="other").search(["sea"], 1)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "reply",
    ["<html>", "[]", '{"responses": []}', '{"responses": [7]}', '{"responses": [{"hits": {"hits": [{"_id": "a"}]}}]}'],
)
def test_a_malformed_reply_is_named(server, reply):
    server.replies = [(200, reply)]
    with pytest.raises(InputError, match="the reply is not one of `_msearch`"):
        engine(server).search(["sea"], 1)
    assert len(server.requests) == 1


def test_credentials_come_from_the_environment(server, monkeypatch):
    monkeypatch.setenv("SEARCH_USER", "ann")
    monkeypatch.setenv("SEARCH_PASSWORD", "secret")
    engine(server).search(["sea"], 1)
    monkeypatch.setenv("SEARCH_API_KEY", "key")
    engine(server).search(["sea"], 1)
    basic = "Basic " + base64.b64encode(b"ann:secret").decode()
    assert [headers["Authorization"] for headers, _ in server.requests] == [basic, "ApiKey key"]


def test_refused_credentials_are_named(server):
    server.replies = [(401, "who are you")]
    with pytest.raises(InputError, match="status 401; set SEARCH_API_KEY.*who are you"):
        engine(server).search(["sea"], 1)


def test_tls_with_a_custom_authority(tmp_path, monkeypatch):
    if not shutil.which("openssl"):
        pytest.skip("the program openssl, which makes the certificate, is not there")
    pem = tmp_path / "server.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(pem), "-out", str(tmp_path / "authority.pem")],
        check=True, capture_output=True,
    )  # fmt: skip
    pem.write_text(pem.read_text() + (tmp_path / "authority.pem").read_text())
    with running(FakeSearch(RankBM25(PASSAGES, plain)), certificate=pem) as server:
        with pytest.raises(InputError, match="certificate is not trusted.*SEARCH_CA_FILE"):
            engine(server).search(["sea"], 1)
        monkeypatch.setenv("SEARCH_CA_FILE", str(tmp_path / "authority.pem"))
        assert engine(server).search(["sea"], 1) == [[Hit("b", pytest.approx(0.6931, abs=1e-3))]]
        monkeypatch.setenv("SEARCH_CA_FILE", str(tmp_path / "gone.pem"))
        with pytest.raises(InputError, match="SEARCH_CA_FILE: .*gone.pem cannot be used"):
            engine(server)
