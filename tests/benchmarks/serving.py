"""Measure the throughput of `python -m rewriter.serve` with one client and with many concurrent clients.

python -m rewriter.serve runs/quickstart --port 8000 &
python -m tests.benchmarks.serving http://localhost:8000 --clients 1 50
"""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2

from core.tables import markdown_table

HISTORY = [{"role": "user", "content": "Who founded Acme?"}, {"role": "assistant", "content": "Ann Lee."}]


def queries_of(url: str, clients: int, requests: int) -> tuple[list[str], float]:
    """Send requests from concurrent clients.

    Args:
        url: address of the service.
        clients: number of clients; each waits for its answer before it sends the next request.
        requests: number of requests of all clients together, each with a different question.

    Returns:
        The queries in the order of the requests, and the total seconds.

    Raises:
        httpx2.HTTPStatusError: a request was not answered.
    """
    with httpx2.Client(timeout=300, limits=httpx2.Limits(max_connections=clients)) as client:

        def ask(number: int) -> str:
            body = {"history": HISTORY, "question": f"Where is place {number}?"}
            return client.post(f"{url}/rewrite", json=body).raise_for_status().json()["query"]

        start = time.monotonic()
        with ThreadPoolExecutor(clients) as pool:
            queries = list(pool.map(ask, range(requests)))
        return queries, time.monotonic() - start


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="address of the service, such as http://localhost:8000")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 50], help="numbers of clients (default: 1 50)")
    parser.add_argument("--requests", type=int, default=200, help="requests of each measurement (default: 200)")
    flags = parser.parse_args(argv)
    seconds = [queries_of(flags.url, clients, flags.requests)[1] for clients in flags.clients]
    rows = [
        [str(clients), str(flags.requests), f"{flags.requests / taken:.1f}"]
        for clients, taken in zip(flags.clients, seconds, strict=True)
    ]
    print(markdown_table(["clients", "requests", "requests/s"], rows), end="")


if __name__ == "__main__":
    main()
