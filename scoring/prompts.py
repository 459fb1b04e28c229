"""The generator's prompts: answer with documents, answer without them, and answer or abstain."""

from core.records import Message

SYSTEM = "You answer the questions of a conversation."
ANSWER = "Answer the question in a few words. Always give an answer. Use the documents if there are any."
ABSTAIN = "Answer the question in a few words from the documents. If they do not hold the answer, reply NO-RESPONSE."


def answer_messages(
    history: list[Message], question: str, documents: list[str], instruction: str = ANSWER
) -> list[Message]:
    """Build the chat messages that ask the generator for an answer.

    The conversation comes first, as chat messages. Instruction, documents and question share the last user message, so
    all prompts of a turn have a common prefix, which the generator reads once for all documents and rewards.
    The default instruction does not allow abstention: a model that may abstain answers "no answer" with high
    confidence, so useless documents would score high.

    Args:
        history: earlier messages, oldest first.
        question: the current question.
        documents: passage texts in rank order; empty for the prompt without documents.
        instruction: `ANSWER` or `ABSTAIN`.

    Returns:
        A system message, the history, and one user message.
    """
    listed = "\n".join(f"[{rank}] {text}" for rank, text in enumerate(documents, 1))
    parts = [instruction, f"Documents:\n{listed}" if documents else "", f"Question: {question}"]
    last = {"role": "user", "content": "\n\n".join(part for part in parts if part)}
    return [{"role": "system", "content": SYSTEM}, *history, last]
