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

from haystack import component
from haystack.dataclasses import ChatMessage

from rewriter.integrations import to_turn
from rewriter.rewriter import Rewriter


@component
class QueryRewriter:
    """Rewrites the last message of a chat as a stand-alone query.

    Args:
        rewriter: run folder, adapter folder, folder of a merged model, or the Hub id of one of these.
        url: URL of an OpenAI-compatible server, ending in `/v1`; `rewriter` is then the name of the model there.
    """

    def __init__(self, rewriter: str, url: str | None = None):
        self.rewriter, self.url = rewriter, url  # Haystack saves them with the pipeline
        self._loaded: Rewriter | None = None

    def warm_up(self) -> None:
        """Load the model."""
        if self._loaded is None and self.url:
            self._loaded = Rewriter.from_url(self.url, self.rewriter)
        elif self._loaded is None:
            self._loaded = Rewriter.from_pretrained(self.rewriter)

    @component.output_types(query=str)
    def run(self, messages: list[ChatMessage]) -> dict[str, str]:
        """Rewrite the last message as a query.

        Args:
            messages: the chat; the last message is from the user. System and tool messages are ignored.

        Raises:
            InputError: the last message is not from the user.
        """
        turn = to_turn((message.role.value, message.text) for message in messages)
        self.warm_up()
        return {"query": self._loaded.queries([turn])[0][0]}
