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

from core.errors import InputError
from core.records import Turn
from rewriter.rewriter import Rewriter

ROLES = {"human": "user", "ai": "assistant"}


def to_turn(messages: Sequence[BaseMessage]) -> Turn:
    """A chat as a turn; messages of systems and tools are not looked at.

    Raises:
        InputError: the last message is not a user's.
    """
    chat = [{"role": ROLES[m.type], "content": m.text} for m in messages if m.type in ROLES]
    if not chat or chat[-1]["role"] != "user":
        raise InputError("the messages must end with a human's.")
    return Turn("question", tuple(chat[:-1]), chat[-1]["content"])


def query_rewriter(rewriter: Rewriter) -> RunnableLambda:
    """A runnable from messages, the last one a human's, to the query for it.

    Args:
        rewriter: a loaded rewriter.
    """
    return RunnableLambda(lambda messages: rewriter.queries([to_turn(messages)])[0][0], name="query_rewriter")
