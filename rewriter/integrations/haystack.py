"""A Haystack component that turns the last message of a chat into a search query.

    from haystack import Pipeline
    from rewriter.integrations.haystack import QueryRewriter

    pipeline = Pipeline()
    pipeline.add_component("rewriter", QueryRewriter("runs/quickstart"))
    pipeline.add_component("retriever", InMemoryBM25Retriever(store))
    pipeline.connect("rewriter.query", "retriever.query")
    pipeline.run({"rewriter": {"messages": [ChatMessage.from_user("Where was she born?")]}})

Needs `haystack-ai`.
"""

from typing import Any

from haystack import component, default_from_dict, default_to_dict
from haystack.dataclasses import ChatMessage, ChatRole

from core.errors import InputError
from rewriter.rewriter import Rewriter

ROLES = {ChatRole.USER: "user", ChatRole.ASSISTANT: "assistant"}


@component
class QueryRewriter:
    """Rewrites the last message of a chat as a query that stands alone.

    Args:
        rewriter: run folder, folder of an adapter or of a merged model, or the Hub id of one of these.
        url: address of a server with the OpenAI protocol, ending in `/v1`; `rewriter` then names its model.
    """

    def __init__(self, rewriter: str, url: str | None = None):
        self.rewriter, self.url, self._loaded = rewriter, url, None

    def warm_up(self) -> None:
        """Load the model."""
        if self._loaded is None:
            loaded = (
                Rewriter.from_url(self.url, self.rewriter) if self.url else Rewriter.from_pretrained(self.rewriter)
            )
            self._loaded = loaded

    @component.output_types(query=str)
    def run(self, messages: list[ChatMessage]) -> dict[str, str]:
        """The query for the last message.

        Args:
            messages: the chat; the last one is a user's. Messages of systems and tools are not looked at.

        Raises:
            InputError: the last message is not a user's.
        """
        chat = [{"role": ROLES[m.role], "content": m.text or ""} for m in messages if m.role in ROLES]
        if not chat or chat[-1]["role"] != "user":
            raise InputError("`messages` must end with a user's message.")
        self.warm_up()
        return {"query": self._loaded.rewrite(chat[:-1], chat[-1]["content"])}

    def to_dict(self) -> dict[str, Any]:
        """The component for a pipeline in YAML."""
        return default_to_dict(self, rewriter=self.rewriter, url=self.url)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "QueryRewriter":
        """The component from a pipeline in YAML."""
        return default_from_dict(cls, data)
