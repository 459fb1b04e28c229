"""A running OpenSearch or Elasticsearch, for collections that outgrow one machine.

Its documents' `_id` must be the ids of `data.corpus`, which the generator's documents are read from.
"""

import json
import os
import ssl
import time
from collections.abc import Sequence
from typing import Any

from core.errors import InputError, first_line
from core.records import Hit
from core.runtime import log
from core.settings import RetrievalSettings

BATCH = 100  # queries in a request
TIMEOUT = 60.0  # seconds for a request
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # seconds before a request is sent again; doubled each time
BUSY = (429, 500, 502, 503, 504)


class Busy(Exception):
    """The server cannot answer now; says why."""


class SearchServer:
    """An index of a search server, asked by `_msearch`.

    Args:
        client: an `httpx2.Client` with the server's address, credentials and time limit.
        index: name of the index.
        fields: text fields that a query is matched with (`multi_match`); the best one counts.
        retries: how often a request is sent again.
    """

    def __init__(self, client, index: str, fields: Sequence[str], retries: int = 5):
        self.client, self.index, self.fields, self.retries = client, index, list(fields), retries
        self.place = f"{str(client.base_url).rstrip('/')}, index `{index}`"

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Up to `k` documents per query as the server ranks them; none for an empty query."""
        asked = [number for number, query in enumerate(queries) if query.strip()]
        found: list[list[Hit]] = [[] for _ in queries]
        for start in range(0, len(asked), BATCH):
            some = asked[start : start + BATCH]
            for number, hits in zip(some, self._ask([queries[i] for i in some], k), strict=True):
                found[number] = hits
        return found

    def _ask(self, queries: list[str], k: int) -> list[list[Hit]]:
        lines = []
        for query in queries:
            match = {"multi_match": {"query": query, "fields": self.fields}}
            # A fixed `preference` asks the same copies of the index each time, which break ties alike.
            lines += [{"index": self.index, "preference": "rewriter"}, {"size": k, "_source": False, "query": match}]
        body = "".join(json.dumps(line) + "\n" for line in lines)
        tried = 0
        while True:
            try:
                return self._send(body, len(queries))
            except Busy as error:
                tried += 1
                if tried > self.retries:
                    raise InputError(
                        f"{self.place}: no answer to {tried} requests ({error}). Is the server up, and "
                        f"`retrieval.url` right? A larger `retrieval.retries` waits longer."
                    ) from error
                wait = min(FIRST_WAIT * 2 ** (tried - 1), LONGEST_WAIT)
                log.warning("%s: %s; again in %.1f s", self.place, error, wait)
                time.sleep(wait)

    def _send(self, body: str, expected: int) -> list[list[Hit]]:
        import httpx2

        try:
            reply = self.client.post("_msearch", content=body, headers={"Content-Type": "application/x-ndjson"})
        except httpx2.TransportError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise InputError(
                    f"{self.place}: the server's certificate is not trusted ({first_line(error)}); name the file of "
                    f"its authority in the environment variable SEARCH_CA_FILE."
                ) from error
            raise Busy(first_line(error)) from error
        self._check(reply.status_code, reply.text)
        try:
            responses = reply.json()["responses"]
            if len(responses) != expected:
                raise ValueError(f"{len(responses)} responses to {expected} queries")
            return [self._hits(response) for response in responses]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"{self.place}: the reply is not what `_msearch` gives ({type(error).__name__}: {first_line(error)}); "
                f"is `retrieval.url` an OpenSearch or Elasticsearch? It begins: {reply.text[:80]!r}."
            ) from error

    def _hits(self, response: dict[str, Any]) -> list[Hit]:
        if "error" in response:
            self._check(response.get("status", 400), json.dumps(response["error"]))
        if response.get("timed_out") or response.get("_shards", {}).get("failed"):
            raise Busy("only a part of the index was searched")
        return [Hit(str(hit["_id"]), float(hit["_score"])) for hit in response["hits"]["hits"]]

    def _check(self, status: int, said: str) -> None:
        """Raise for a status that is no success.

        Raises:
            Busy: the same request may succeed later.
            InputError: it will not.
        """
        if status in BUSY:
            raise Busy(f"status {status}")
        ways = {
            401: "set SEARCH_API_KEY, or SEARCH_USER and SEARCH_PASSWORD, in the environment",
            403: "these credentials may not search it",
            404: "is `retrieval.index` right?",
        }
        if not 200 <= status < 300:
            way = ways.get(status, "see the server's message")
            raise InputError(f"{self.place}: status {status}; {way}. It said: {said[:300]}")


def search_server(settings: RetrievalSettings) -> SearchServer:
    """The index that the settings name.

    Credentials come from the environment: `SEARCH_API_KEY`, or `SEARCH_USER` and `SEARCH_PASSWORD`. `SEARCH_CA_FILE`
    names the certificates of an authority that the system does not know.

    Raises:
        InputError: the certificates are not usable.
    """
    import httpx2

    key, user = os.environ.get("SEARCH_API_KEY"), os.environ.get("SEARCH_USER")
    authority = os.environ.get("SEARCH_CA_FILE")
    try:
        trusted = ssl.create_default_context(cafile=authority)
    except OSError as error:
        raise InputError(f"SEARCH_CA_FILE: {authority} cannot be used ({first_line(error)}).") from error
    client = httpx2.Client(
        base_url=settings.url,
        headers={"Authorization": f"ApiKey {key}"} if key else {},
        auth=(user, os.environ.get("SEARCH_PASSWORD", "")) if user and not key else None,
        verify=trusted,
        timeout=TIMEOUT,
    )
    return SearchServer(client, settings.index, settings.fields, settings.retries)
