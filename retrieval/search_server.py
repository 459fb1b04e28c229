"""Search with a running OpenSearch or Elasticsearch server, for collections too large for one machine.

The `_id` of its documents must be their ids in `data.corpus`, from which the generator's documents are read.
"""

import json
import os
import ssl
import time
from collections.abc import Sequence
from itertools import count
from typing import Any

import httpx2

from core.errors import InputError, first_line
from core.progress import log
from core.records import Hit
from core.settings import RetrievalSettings
from core.stage_runner import batched

BATCH = 100  # queries per request
TIMEOUT = 60.0  # seconds per request
FIRST_WAIT, MAX_WAIT = 0.5, 30.0  # seconds before a retry; doubled each time
RETRYABLE = (429, 500, 502, 503, 504)
STATUS_HINTS = {
    401: "set SEARCH_API_KEY, or SEARCH_USER and SEARCH_PASSWORD, in the environment",
    403: "these credentials have no access to it",
    404: "is `retrieval.index` right?",
}


class RetryableError(Exception):
    """A temporary failure: a retry may succeed."""


class SearchServer:
    """An index of a search server, queried with `_msearch`.

    Credentials come from the environment: `SEARCH_API_KEY`, or `SEARCH_USER` and `SEARCH_PASSWORD`. `SEARCH_CA_FILE`
    is the certificate file of an authority that the system does not trust.

    Args:
        settings: `url`, `index`, `fields` (each is matched with a query; the best match counts) and `retries`.

    Raises:
        InputError: the certificates cannot be used.
    """

    def __init__(self, settings: RetrievalSettings):
        self.index, self.fields, self.retries = settings.index, settings.fields, settings.retries
        self.place = f"{settings.url.rstrip('/')}, index `{settings.index}`"
        key, user = os.environ.get("SEARCH_API_KEY"), os.environ.get("SEARCH_USER")
        authority = os.environ.get("SEARCH_CA_FILE")
        try:
            context = ssl.create_default_context(cafile=authority)
        except OSError as error:
            raise InputError(f"SEARCH_CA_FILE: {authority} cannot be used ({first_line(error)}).") from error
        self.client = httpx2.Client(
            base_url=settings.url,
            headers={"Authorization": f"ApiKey {key}"} if key else {},
            auth=(user, os.environ.get("SEARCH_PASSWORD", "")) if user and not key else None,
            verify=context,
            timeout=TIMEOUT,
        )

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Up to `k` documents per query as the server ranks them; none for a blank query."""
        texts = [query for query in queries if query.strip()]
        rankings = iter([ranking for batch in batched(texts, BATCH) for ranking in self._search_batch(batch, k)])
        return [next(rankings) if query.strip() else [] for query in queries]

    def _search_batch(self, queries: list[str], k: int) -> list[list[Hit]]:
        """Send one request, and retry it with growing waits while the server is busy or unavailable."""
        lines = []
        for query in queries:
            match = {"multi_match": {"query": query, "fields": self.fields}}
            # A fixed `preference` always selects the same shard copies, which break ties in the same way.
            lines += [{"index": self.index, "preference": "rewriter"}, {"size": k, "_source": False, "query": match}]
        body = "".join(json.dumps(line) + "\n" for line in lines)
        for attempt in count(1):
            try:
                return self._post(body, len(queries))
            except RetryableError as error:
                if attempt > self.retries:
                    raise InputError(
                        f"{self.place}: no answer to {attempt} requests ({error}). Is the server up, and "
                        f"`retrieval.url` right? Increase `retrieval.retries` to wait longer."
                    ) from error
                wait = min(FIRST_WAIT * 2 ** (attempt - 1), MAX_WAIT)
                log.warning("%s: %s; retrying in %.1f s", self.place, error, wait)
                time.sleep(wait)

    def _post(self, body: str, queries: int) -> list[list[Hit]]:
        try:
            reply = self.client.post("_msearch", content=body, headers={"Content-Type": "application/x-ndjson"})
        except httpx2.TransportError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise InputError(
                    f"{self.place}: the server's certificate is not trusted ({first_line(error)}); set the "
                    f"environment variable SEARCH_CA_FILE to the certificate file of its authority."
                ) from error
            raise RetryableError(first_line(error)) from error
        self._check_status(reply.status_code, reply.text)
        try:
            responses = reply.json()["responses"]
            if len(responses) != queries:
                raise ValueError(f"{len(responses)} responses to {queries} queries")
            return [self._hits(response) for response in responses]
        except InputError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{self.place}: the reply is not one of `_msearch` ({type(error).__name__}: {first_line(error)}); is "
                f"`retrieval.url` an OpenSearch or Elasticsearch server? It starts with {reply.text[:80]!r}."
            ) from error

    def _hits(self, response: dict[str, Any]) -> list[Hit]:
        if "error" in response:
            self._check_status(response.get("status", 400), json.dumps(response["error"]))
        if response.get("timed_out") or response.get("_shards", {}).get("failed"):
            raise RetryableError("only part of the index was searched")
        return [Hit(str(hit["_id"]), float(hit["_score"])) for hit in response["hits"]["hits"]]

    def _check_status(self, status: int, message: str) -> None:
        """Raise an error for a status other than success.

        Raises:
            RetryableError: a retry may succeed.
            InputError: a retry will not succeed.
        """
        if status in RETRYABLE:
            raise RetryableError(f"status {status}")
        if not 200 <= status < 300:
            hint = STATUS_HINTS.get(status, "see the server's message")
            raise InputError(f"{self.place}: status {status}; {hint}. Reply: {message[:300]}")
