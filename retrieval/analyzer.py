"""Text to terms, the same for documents and queries."""

import unicodedata
from collections.abc import Callable
from functools import lru_cache

import regex
import Stemmer
from bm25s.stopwords import STOPWORDS_EN

from core.errors import InputError

Analyzer = Callable[[str], list[str]]
WORD = regex.compile(r"[\p{L}\p{M}\p{N}_]+")  # with the vowel signs that `\w` leaves out


def plain(text: str) -> list[str]:
    """Lower-case words, in composed Unicode form."""
    return WORD.findall(unicodedata.normalize("NFC", text).lower())


def english_analyzer() -> Analyzer:
    """Lower case, English stop words out, Snowball stems (as Lucene's English analyser, but for possessives)."""
    stem = lru_cache(maxsize=1 << 16)(Stemmer.Stemmer("english").stemWord)
    stops = frozenset(STOPWORDS_EN)
    return lambda text: [stem(word) for word in plain(text) if word not in stops]


def analyzer_of(name: str) -> Analyzer:
    """The analyser `english` or `plain`.

    Raises:
        InputError: there is none by that name.
    """
    known = {"english": english_analyzer, "plain": lambda: plain}
    if name not in known:
        raise InputError(f"`retrieval.analyzer` must be one of {', '.join(known)}, got `{name}`.")
    return known[name]()
