"""A rewriter behind a server with the OpenAI protocol, such as vLLM or `rewriter.serve`."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from openai import OpenAI, OpenAIError

from core.errors import InputError, first_line
from core.records import Message

CONCURRENCY = 16  # requests at once
RETRIES = 5  # of a request that the server refuses for now; the client waits longer each time


class ChatServer:
    """Answers prompts with a served model.

    Args:
        url: address that ends in `/v1`.
        model: name of the model on the server.
        api_key: of the server; `OPENAI_API_KEY` of the environment when not given.
    """

    def __init__(self, url: str, model: str, api_key: str | None = None):
        key = api_key or os.environ.get("OPENAI_API_KEY") or "none"
        self.client = OpenAI(base_url=url, api_key=key, max_retries=RETRIES)
        self.url, self.model = url, model

    def answers(
        self, prompts: Sequence[list[Message]], max_new_tokens: int, n: int, temperature: float, top_p: float
    ) -> list[list[str]]:
        """Answers to each prompt, several prompts at once.

        Args:
            prompts: chat messages of each prompt.
            max_new_tokens: longest answer.
            n: answers per prompt.
            temperature: sampling temperature; 0 takes the most likely token.
            top_p: nucleus sampling threshold.

        Raises:
            InputError: the server cannot be reached, or refuses a request.
        """

        def answer(messages: list[Message]) -> list[str]:
            texts: list[str] = []
            while len(texts) < n:  # some servers give one answer whatever `n` is
                reply = self.client.chat.completions.create(
                    model=self.model, messages=messages, max_tokens=max_new_tokens, n=n - len(texts),
                    temperature=temperature, top_p=top_p,
                )  # fmt: skip
                texts += [choice.message.content or "" for choice in reply.choices]
            return texts[:n]

        try:
            with ThreadPoolExecutor(CONCURRENCY) as pool:
                return list(pool.map(answer, prompts))
        except OpenAIError as error:
            raise InputError(f"{self.url}: {first_line(error)}") from error
