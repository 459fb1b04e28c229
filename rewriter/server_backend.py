"""A rewriter behind a server with the OpenAI protocol, such as vLLM or `rewriter.serve`."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from openai import OpenAI, OpenAIError

from core.errors import CREDENTIALS, InputError, first_line
from core.records import Turn
from core.settings import RewriterSettings
from rewriter.prompts import RewritePrompt, read_rewrite

CONCURRENCY = 16  # requests at once
RETRIES = 5  # of a request that the server refuses for now; the client waits longer each time


class ServerBackend:
    """A model on a server.

    Args:
        url: address that ends in `/v1`.
        model: name of the model on the server.
        api_key: of the server; `OPENAI_API_KEY` of the environment when not given.

    Raises:
        InputError: the address holds credentials.
    """

    def __init__(self, url: str, model: str, api_key: str | None = None):
        if CREDENTIALS.search(url):
            raise InputError("the server's address holds credentials; take them out and set OPENAI_API_KEY.")
        key = api_key or os.environ.get("OPENAI_API_KEY") or "none"
        self.client = OpenAI(base_url=url, api_key=key, max_retries=RETRIES)
        self.url, self.model = url, model

    def rewrites(self, turns: Sequence[Turn], options: RewriterSettings, n: int) -> list[list[str]]:
        """The most likely rewrite of each turn, or `n` samples; several turns at once.

        Raises:
            InputError: the server cannot be reached, or refuses a request.
        """
        prompt = RewritePrompt.of(options)

        def rewrite(turn: Turn) -> list[str]:
            texts: list[str] = []
            while len(texts) < n:  # some servers give one answer whatever `n` is
                reply = self.client.chat.completions.create(
                    model=self.model, messages=prompt.messages(turn.history, turn.question),
                    max_tokens=options.max_new_tokens, n=n - len(texts),
                    temperature=0.0 if n == 1 else options.temperature, top_p=options.top_p,
                )  # fmt: skip
                texts += [read_rewrite(choice.message.content or "") for choice in reply.choices]
            return texts[:n]

        try:
            with ThreadPoolExecutor(CONCURRENCY) as pool:
                return list(pool.map(rewrite, turns))
        except OpenAIError as error:
            raise InputError(f"{self.url}: {first_line(error)}") from error
