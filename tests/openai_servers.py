"""Real HTTP servers with the OpenAI protocol: `rewriter.serve` in a thread, and one that can be configured to fail."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

import uvicorn

from rewriter import Rewriter
from rewriter.serve import ServeFlags
from rewriter.service import app_for

CUT = 0  # instead of a status: close the connection without a reply


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def serving(rewriter: Rewriter, **flags) -> Iterator[str]:
    """Serve a rewriter in a thread until the block ends; yields its address."""
    flags = ServeFlags(rewriter="x", port=free_port(), **flags)
    server = uvicorn.Server(uvicorn.Config(app_for(rewriter, flags), port=flags.port, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{flags.port}"
    finally:
        server.should_exit = True
        thread.join()


@dataclass
class ScriptedServer:
    """A server whose answers depend only on the last message, the seed and the number of the choice.

    Args:
        url: its address, which ends in `/v1`.
        n: whether it returns several choices, ignores `n`, or rejects it.
        logprobs: whether it returns log-probabilities (-0.5 for each word), ignores `logprobs`, or rejects it.
        faults: statuses of the next replies, each with its body, or `CUT`.
        always: the status of all replies after the faults; 200 for answers.
        refuses: a word; prompts with it get status 400.
        seconds: duration of an answer.
        requests: headers and bodies of the requests so far.
        most: maximum number of concurrent requests so far.
    """

    url: str = ""
    n: Literal["yes", "ignored", "refused"] = "yes"
    logprobs: Literal["yes", "ignored", "refused"] = "yes"
    faults: list[tuple[int, str]] = field(default_factory=list)
    always: int = 200
    refuses: str = ""
    seconds: float = 0.0
    requests: list[tuple[dict[str, str], dict]] = field(default_factory=list)
    most: int = 0

    def answer(self, body: dict) -> tuple[int, str]:
        """Status and body of a reply."""
        question = body["messages"][-1]["content"]
        if self.refuses and self.refuses in question:
            return 400, '{"message": "the prompt is too long"}'
        if (self.n == "refused" and body["n"] > 1) or (self.logprobs == "refused" and body["logprobs"]):
            return 400, '{"message": "not supported"}'
        choices = []
        for i in range(1 if self.n == "ignored" else body["n"]):
            text = f"{question.split()[-1]} {body['seed']} {i}"
            choice = {"index": i, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            if self.logprobs == "yes" and body["logprobs"]:
                tokens = [{"token": w, "logprob": -0.5, "bytes": None, "top_logprobs": []} for w in text.split()]
                choice["logprobs"] = {"content": tokens}
            choices.append(choice)
        identity = {"id": "x", "object": "chat.completion", "created": 0, "model": body["model"]}
        return 200, json.dumps(identity | {"choices": choices})


@contextmanager
def running(state: ScriptedServer) -> Iterator[ScriptedServer]:
    """Serve until the block ends."""
    lock, present = threading.Lock(), [0]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/chat/completions"
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                state.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
                present[0] += 1
                state.most = max(state.most, present[0])
                fault = state.faults.pop(0) if state.faults else None
            time.sleep(state.seconds)
            with lock:
                present[0] -= 1
            if fault is None:
                fault = state.answer(body) if state.always == 200 else (state.always, "{}")
            status, text = fault
            if status == CUT:
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("Content-Type", "application/json" if text.startswith("{") else "text/html")
            self.send_header("Content-Length", str(len(text.encode())))
            self.send_header("Retry-After-Ms", "5")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 64

        def handle_error(self, *_: object) -> None:  # the client has disconnected
            pass

    server = Server(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
