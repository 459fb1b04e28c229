"""Compare answers as SQuAD does, and detect abstentions."""

import re
import string
from collections import Counter
from collections.abc import Sequence

ARTICLES = re.compile(r"\b(a|an|the)\b")
ABSTENTION = re.compile(
    r"no[- ]response|no answer|i (do not|don't) know|i'm sorry|unknown\W*$"
    r"|not (mentioned|specified|provided|stated|enough information)"
    r"|(cannot|can't|unable to) (be )?(answer|determine|find)"
    r"|(does|do) not (say|mention|provide|contain)",
    re.IGNORECASE,
)

QUESTION_WORDS = {
    "what", "who", "whom", "whose", "when", "where", "which", "why", "how", "is", "are", "was", "were", "do", "does",
    "did", "can", "could", "should", "shall", "will", "would", "may", "might", "has", "have", "had", "tell", "explain",
    "describe", "list", "name", "give", "find", "show", "compare",
}  # fmt: skip
FINITE_VERB = re.compile(r"\b(is|are|was|were|has|have|had|can|could|will|would|does|did|do)\b")


def normalize_answer(text: str) -> str:
    """Lower-case a text and remove punctuation, articles and repeated spaces (as SQuAD's evaluation script)."""
    text = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(ARTICLES.sub(" ", text).split())


def exact_match(answer: str, references: Sequence[str]) -> float:
    """1.0 if the answer equals a reference after normalization, else 0.0."""
    return float(normalize_answer(answer) in {normalize_answer(reference) for reference in references})


def contains(answer: str, references: Sequence[str]) -> float:
    """1.0 if the answer contains the words of a reference in order after normalization, else 0.0."""
    text, normalized = f" {normalize_answer(answer)} ", map(normalize_answer, references)
    return float(any(f" {reference} " in text for reference in normalized if reference))


def token_f1(answer: str, references: Sequence[str]) -> float:
    """Harmonic mean of token precision and recall, against the reference where it is highest."""
    words = normalize_answer(answer).split()
    return max((_f1(words, normalize_answer(reference).split()) for reference in references), default=0.0)


def _f1(answer: list[str], reference: list[str]) -> float:
    if not answer or not reference:
        return float(answer == reference)
    common = sum((Counter(answer) & Counter(reference)).values())
    if not common:
        return 0.0
    precision, recall = common / len(answer), common / len(reference)
    return 2 * precision * recall / (precision + recall)


def abstains(answer: str) -> bool:
    """Whether an answer reads like a refusal to answer."""
    return bool(ABSTENTION.search(answer))


def states_answer(query: str) -> bool:
    """Whether a query reads like a statement rather than a question or keywords (English only).

    Example:
        >>> states_answer("The Patriots' coach is Bill Belichick"), states_answer("coach of the Patriots")
        (True, False)
    """
    words = query.lower().split()
    if not words or "?" in query or words[0].strip(",.:") in QUESTION_WORDS:
        return False
    return (
        words[-1][-1] in ".!" or words[0].strip(",.") in ("yes", "no") or bool(FINITE_VERB.search(" ".join(words[1:])))
    )
