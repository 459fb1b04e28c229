"""`python -m rewriter.serve`: endpoints, limits, batches of concurrent requests, and the end of the process."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx2
import pytest

from core.errors import InputError
from core.settings import RewriterSettings
from rewriter import Rewriter
from rewriter.adapter_settings import save_adapter_settings
from rewriter.rewriter import LocalBackend
from rewriter.serve import main as serve_command
from tests.benchmarks import serving as serving_benchmark
from tests.conftest import ROOT
from tests.openai_servers import free_port, serving

HISTORY = [{"role": "user", "content": "Who made Talpa?"}, {"role": "assistant", "content": "Ann Lee."}]
QUESTION = "Where was she born?"


@pytest.fixture(scope="module")
def rewriter(lm):
    return Rewriter(LocalBackend(lm), RewriterSettings(model=lm.name, max_new_tokens=8))


@pytest.fixture
def serve(rewriter):
    """A function that serves the rewriter in a thread, and returns the address."""
    with ExitStack() as servers:
        yield lambda **flags: servers.enter_context(serving(rewriter, **flags))


def test_a_query_is_that_of_the_rewriter(serve, rewriter):
    url = serve()
    reply = httpx2.post(f"{url}/rewrite", json={"history": HISTORY, "question": QUESTION}).json()
    assert reply == {"query": rewriter.rewrite(HISTORY, QUESTION), "queries": [rewriter.rewrite(HISTORY, QUESTION)]}
    reply = httpx2.post(f"{url}/rewrite", json={"history": HISTORY, "question": QUESTION, "n": 3}).json()
    assert reply["queries"] == rewriter.rewrite(HISTORY, QUESTION, n=3)
    assert httpx2.get(f"{url}/health").json() == {"status": "ok", "waiting": 0}


def test_a_rewriter_by_its_url(serve, rewriter, tmp_path):
    save_adapter_settings(tmp_path, rewriter.options)
    remote = Rewriter.from_url(f"{serve(name='talpa')}/v1", "talpa", settings=tmp_path)
    assert remote.rewrite(HISTORY, QUESTION) == rewriter.rewrite(HISTORY, QUESTION)
    assert [model.id for model in remote.backend.client.models.list()] == ["talpa"]
    assert 1 <= len(remote.rewrite(HISTORY, QUESTION, n=3)) <= 3


def test_an_unreachable_server_is_named():
    remote = Rewriter.from_url(f"http://127.0.0.1:{free_port()}/v1", "m", retries=0)
    with pytest.raises(InputError, match="http://127.0.0.1:.*: Connection error"):
        remote.rewrite(HISTORY, QUESTION)


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("rewrite", {"question": " "}, 422, "question"),
        ("rewrite", {"question": "q", "history": [{"role": "system", "content": "x"}]}, 422, "role"),
        ("rewrite", {"question": "q", "histroy": []}, 422, "histroy"),
        ("rewrite", {"question": "q", "history": HISTORY * 300}, 422, "500"),
        ("rewrite", {"question": "q" * 5000}, 413, "at most 3000 are accepted"),
        ("v1/chat/completions", {"messages": []}, 422, "messages"),
        ("v1/chat/completions", {"messages": HISTORY[:1], "stream": True}, 422, "`stream` is not supported"),
        ("v1/chat/completions", {"messages": HISTORY[:1], "max_tokens": 100_000}, 422, "fit with the answer"),
    ],
)
def test_requests_that_are_refused(serve, path, body, status, message):
    flags = {} if "history" in body and len(body["history"]) > 500 else {"max_body": 3000}
    reply = httpx2.post(f"{serve(**flags)}/{path}", json=body)
    assert reply.status_code == status and message in reply.text


def test_a_body_that_is_not_announced_as_json_is_refused(serve):
    reply = httpx2.post(f"{serve()}/rewrite", content='{"question": "q"}')
    assert reply.status_code == 415 and "Content-Type: application/json" in reply.text


def test_a_full_queue_refuses(serve, rewriter, monkeypatch):
    release = threading.Event()
    queries = rewriter.queries
    monkeypatch.setattr(rewriter, "queries", lambda turns, n: release.wait(20) and queries(turns, n))
    url = serve(max_queue=1, max_batch=1)
    with ThreadPoolExecutor(8) as pool:
        replies = [pool.submit(httpx2.post, f"{url}/rewrite", json={"question": "q"}, timeout=30) for _ in range(8)]
        while sum(reply.done() for reply in replies) < 6:  # one is being answered, one waits
            time.sleep(0.01)
        release.set()
    statuses = sorted(reply.result().status_code for reply in replies)
    assert statuses == [200, 200, *[429] * 6]


@pytest.mark.slow
def test_fifty_clients_lose_no_request(serve, rewriter):
    url, number = serve(max_queue=1000), 200
    expected = [rewriter.rewrite(serving_benchmark.HISTORY, f"Where is place {i}?") for i in range(number)]
    queries, seconds = zip(*(serving_benchmark.queries_of(url, clients, number) for clients in (1, 50)), strict=True)
    assert queries == (expected, expected)
    assert seconds[1] < 0.7 * seconds[0]


def test_a_port_in_use_is_named_before_the_model_is_loaded():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"--port {port}`: Address already in use"):
            serve_command(["no/such/run", "--port", str(port)])


@pytest.mark.slow
def test_a_request_in_flight_is_answered_at_sigterm(random_llama, tmp_path):
    save_adapter_settings(tmp_path, RewriterSettings(model=str(random_llama), max_new_tokens=400))
    for file in random_llama.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    port = free_port()
    command = [sys.executable, "-m", "rewriter.serve", str(tmp_path), "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                httpx2.get(f"http://127.0.0.1:{port}/health")
                break
            except httpx2.TransportError:
                assert time.monotonic() < deadline and process.poll() is None
                time.sleep(0.05)
        with ThreadPoolExecutor(1) as pool:
            body = json.dumps({"question": "Where?", "n": 64})
            headers = {"Content-Type": "application/json"}
            reply = pool.submit(
                httpx2.post, f"http://127.0.0.1:{port}/rewrite", content=body, headers=headers, timeout=60
            )
            time.sleep(0.3)
            assert not reply.done()
            process.send_signal(signal.SIGTERM)
            assert reply.result().status_code == 200
        assert process.wait(30) in (0, -signal.SIGTERM)
    finally:
        process.kill()
