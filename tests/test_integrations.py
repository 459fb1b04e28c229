"""The rewriter in Haystack and LangChain: rewrite, then their own BM25 retrievers."""

import pytest

from core.errors import InputError
from core.settings import RewriterSettings
from rewriter import Rewriter
from rewriter.adapter_settings import save_adapter_settings

HISTORY = [{"role": "user", "content": "Who made Talpa?"}, {"role": "assistant", "content": "Ann Lee."}]
QUESTION = "Where was she born?"
TEXTS = ["Ann Lee was born in Ghent.", "Owls nest in barns.", "Herons fish at dawn."]


@pytest.fixture(scope="module")
def folder(random_llama, tmp_path_factory):
    """A merged model with its settings; the question is part of the query, so that it retrieves something."""
    folder = tmp_path_factory.mktemp("merged")
    for file in random_llama.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    save_adapter_settings(folder, RewriterSettings(model=str(random_llama), max_new_tokens=6, query="joined"))
    return str(folder)


def test_haystack(folder, monkeypatch):
    monkeypatch.setenv("HAYSTACK_TELEMETRY_ENABLED", "False")
    haystack = pytest.importorskip("haystack")
    from haystack.components.retrievers.in_memory import InMemoryBM25Retriever
    from haystack.dataclasses import ChatMessage
    from haystack.document_stores.in_memory import InMemoryDocumentStore

    from rewriter.integrations.haystack import QueryRewriter

    store = InMemoryDocumentStore()
    store.write_documents([haystack.Document(content=text) for text in TEXTS])
    pipeline = haystack.Pipeline()
    pipeline.add_component("rewriter", QueryRewriter(folder))
    pipeline.add_component("retriever", InMemoryBM25Retriever(store, top_k=1))
    pipeline.connect("rewriter.query", "retriever.query")
    module = "rewriter.integrations.haystack"
    pipeline = haystack.Pipeline.loads(pipeline.dumps(), allowed_modules=[module])  # as loaded from YAML
    messages = [ChatMessage.from_system("Be kind."), ChatMessage.from_user(HISTORY[0]["content"]),
                ChatMessage.from_assistant(HISTORY[1]["content"]), ChatMessage.from_user(QUESTION)]  # fmt: skip
    result = pipeline.run({"rewriter": {"messages": messages}}, include_outputs_from={"rewriter"})
    assert result["rewriter"]["query"] == Rewriter.from_pretrained(folder).rewrite(HISTORY, QUESTION)
    with pytest.raises(InputError, match="the last message must be from the user"):
        QueryRewriter(folder).run(messages[:3])


def test_langchain(folder):
    pytest.importorskip("langchain_core")
    community = pytest.importorskip("langchain_community.retrievers")
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

    from rewriter.integrations.langchain import query_rewriter

    rewriter = Rewriter.from_pretrained(folder)
    runnable = query_rewriter(rewriter)
    messages = [SystemMessage("Be kind."), HumanMessage(HISTORY[0]["content"]), AIMessage(HISTORY[1]["content"]),
                HumanMessage(QUESTION)]  # fmt: skip
    assert runnable.invoke(messages) == rewriter.rewrite(HISTORY, QUESTION)
    documents = (runnable | community.BM25Retriever.from_texts(TEXTS, k=1)).invoke(messages)
    assert [document.page_content for document in documents] == TEXTS[:1]
    with pytest.raises(InputError, match="the last message must be from the user"):
        runnable.invoke(messages[:3])
