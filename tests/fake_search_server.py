"""A real HTTP server with the part of `_msearch` that the project uses, which can be configured to fail."""

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from retrieval.retriever import Retriever

INDEX = "passages"


@dataclass
class FakeSearch:
    """The server's state.

    Args:
        url: its address.
        retriever: retriever that ranks.
        replies: status and body of the next replies; once they are used up, the server searches.
        requests: headers and lines of the requests so far.
    """

    retriever: Retriever
    url: str = ""
    replies: list[tuple[int, str]] = field(default_factory=list)
    requests: list[tuple[dict[str, str], list[dict]]] = field(default_factory=list)

    def answer(self, head: dict, body: dict) -> dict:
        """One response of `_msearch`."""
        if head["index"] != INDEX:
            reason = f"no such index [{head['index']}]"
            return {"error": {"type": "index_not_found_exception", "reason": reason}, "status": 404}
        hits = self.retriever.search([body["query"]["multi_match"]["query"]], body["size"])[0]
        search_hits = [{"_index": INDEX, "_id": hit.doc, "_score": hit.score} for hit in hits]
        return {"timed_out": False, "_shards": {"failed": 0}, "hits": {"hits": search_hits}, "status": 200}


@contextmanager
def running(state: FakeSearch, certificate: Path | None = None) -> Iterator[FakeSearch]:
    """Serve until the block ends; over HTTPS with a certificate (a PEM file with certificate and key)."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["Content-Length"])).decode()
            assert text.endswith("\n") and self.path == "/_msearch"
            lines = [json.loads(line) for line in text.splitlines()]
            state.requests.append((dict(self.headers), lines))
            if state.replies:
                status, reply = state.replies.pop(0)
            else:
                pairs = zip(lines[::2], lines[1::2], strict=True)
                status, reply = 200, json.dumps({"responses": [state.answer(*pair) for pair in pairs]})
            self.send_response(status)
            self.send_header("Content-Length", str(len(reply.encode())))
            self.end_headers()
            self.wfile.write(reply.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    state.url = f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
