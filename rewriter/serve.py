"""Serve a rewriter over HTTP: an endpoint for rewriting, and an OpenAI-compatible API.

    python -m rewriter.serve runs/quickstart --port 8000
    curl localhost:8000/rewrite -H 'Content-Type: application/json' \\
        -d '{"history": [{"role": "user", "content": "Who founded Acme?"}], "question": "Where was she born?"}'

`POST /rewrite` takes a conversation and returns the search query. `POST /v1/chat/completions` and `GET /v1/models` are
the OpenAI-compatible API of the same model, for `Rewriter.from_url`. `GET /health` reports whether the server is up.
Requests that arrive while the model is busy are answered together in the next batch.
"""

import socket
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge, Le

from core.cli import parse_flags, run_command
from core.errors import InputError
from core.progress import set_up_logging
from core.schema import Dtype, Positive, Validated


@dataclass(kw_only=True)
class ServeFlags(Validated):
    """Flags of the command.

    Args:
        rewriter: run folder, adapter folder, folder of a merged model, or the Hub id of one of these.
        host: address to listen on; 0.0.0.0 for all.
        port: port to listen on.
        name: name of the model in the OpenAI-compatible API.
        dtype: type of the weights; by default that of training.
        max_batch: maximum number of requests per batch.
        max_queue: maximum number of waiting requests; further ones are rejected with status 429.
        max_body: maximum size of a request in bytes; larger ones are rejected with status 413.
    """

    rewriter: str = field(metadata={"positional": True})
    host: str = "127.0.0.1"
    port: Annotated[int, Ge(0), Le(65535)] = 8000
    name: str = "rewriter"
    dtype: Dtype | None = None
    max_batch: Positive = 32
    max_queue: Positive = 256
    max_body: Positive = 1 << 20


def main(argv: list[str] | None = None) -> None:
    flags = parse_flags(ServeFlags, __doc__, argv)
    set_up_logging()
    try:
        from rewriter.service import serve  # needs optional packages
    except ImportError as error:
        raise InputError(f"{error}; install it with pip install -e '.[serve]'") from error
    family = socket.AF_INET6 if ":" in flags.host else socket.AF_INET
    try:
        socket.create_server((flags.host, flags.port), family=family).close()  # before the model is loaded
    except OSError as error:
        raise InputError(f"`--host {flags.host} --port {flags.port}`: {error.strerror}.") from error
    serve(flags)


if __name__ == "__main__":
    run_command(main)
