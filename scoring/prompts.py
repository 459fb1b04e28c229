"""The generator's prompts: answer from documents, answer without, and answer or abstain."""

from core.conversation import transcript

ANSWER = "Answer the last question in a few words. Always give an answer. Use the documents if there are any."
ABSTAIN = (
    "Answer the last question in a few words from the documents. If they do not hold the answer, reply NO-RESPONSE."
)


def answer_messages(
    history: list[dict[str, str]], question: str, documents: list[str], instruction: str = ANSWER
) -> list[dict[str, str]]:
    """Chat messages that ask the generator for an answer.

    The documents come first, so that the prompts of one document list share a prefix. Where the model may abstain it
    reads one passage after another for the same turn: there the earlier messages come first, and are shared, and the
    question stands after the documents. The default instruction offers no abstention: a model that may abstain says
    "no answer" with great confidence, and useless documents would score high.

    Args:
        history: earlier messages, oldest first.
        question: the current question as the user put it, never a rewrite.
        documents: passage texts in rank order; empty for the ungrounded prompt.
        instruction: the system message, `ANSWER` or `ABSTAIN`.
    """
    listed = "\n".join(f"[{rank}] {text}" for rank, text in enumerate(documents, 1))
    parts = [("Documents", listed), ("Conversation", transcript(history, question))]
    if instruction == ABSTAIN:
        parts = [("Conversation", transcript(history)), ("Documents", listed), ("", transcript([], question))]
    content = "\n\n".join(f"{title}:\n{text}" if title else text for title, text in parts if text)
    return [{"role": "system", "content": instruction}, {"role": "user", "content": content}]
