"""A LangChain runnable that turns the last message of a chat into a search query.

    from rewriter import Rewriter
    from rewriter.integrations.langchain import query_rewriter

    chain = query_rewriter(Rewriter.from_pretrained("runs/quickstart")) | BM25Retriever.from_texts(texts)
    chain.invoke([HumanMessage("Who founded Acme?"), AIMessage("Ann Lee."), HumanMessage("Where was she born?")])

Needs `langchain-core`.
"""

from collections.abc import Sequence

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableLambda

from rewriter.integrations import to_turn
from rewriter.rewriter import Rewriter


def query_rewriter(rewriter: Rewriter) -> RunnableLambda:
    """Build a runnable from messages, of which the last is from the user, to the query for it.

    Args:
        rewriter: a loaded rewriter.
    """

    def rewrite(messages: Sequence[BaseMessage]) -> str:
        turn = to_turn((message.type, message.text) for message in messages)
        return rewriter.queries([turn])[0][0]

    return RunnableLambda(rewrite, name="query_rewriter")
