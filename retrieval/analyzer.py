"""Text to terms, the same for documents and queries."""

import unicodedata
from collections.abc import Callable
from functools import lru_cache

import regex
import Stemmer
from bm25s.stopwords import STOPWORDS_EN

from core.errors import InputError

Analyzer = Callable[[str], list[str]]
VERSION = 1  # raised when an analyser's terms change: indexes made with others are not used any more
WORD = regex.compile(r"[\p{L}\p{M}\p{N}_]+")  # with the vowel signs that `\w` leaves out


def plain(text: str) -> list[str]:
    """Lower-case words, in composed Unicode form."""
    return WORD.findall(unicodedata.normalize("NFC", text).lower())


def english_analyzer() -> Analyzer:
    """Lower case, English stop words out, Snowball stems (as Lucene's English analyser, but for possessives)."""
    stem = lru_cache(maxsize=1 << 16)(Stemmer.Stemmer("english").stemWord)
    stops = frozenset(STOPWORDS_EN)
    return lambda text: [stem(word) for word in plain(text) if word not in stops]


def lucene_words() -> regex.Pattern:
    """Words as Lucene's StandardTokenizer finds them: those of Unicode's word boundaries (UAX #29) with a letter or
    digit in them; "don't", "U.S.A" and "3.5" are one, "wi-fi" is two, an ideograph is one."""
    marks = r"[\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}]*"
    letter = rf"[\p{{WB=ALetter}}\p{{WB=Hebrew_Letter}}]{marks}"
    digit = rf"\p{{WB=Numeric}}{marks}"
    between = r"\p{WB=MidNumLet}\p{WB=Single_Quote}"
    joined = rf"{letter}(?:[\p{{WB=MidLetter}}{between}]{marks}(?={letter}))?"
    number = rf"{digit}(?:[\p{{WB=MidNum}}{between}]{marks}(?={digit}))?"
    katakana, low_line = rf"(?:\p{{WB=Katakana}}{marks})+", rf"(?:\p{{WB=ExtendNumLet}}{marks})"
    run = rf"(?:(?:{joined}|{number})+|{katakana})"
    alone = rf"[\p{{Script=Han}}\p{{Script=Hiragana}}]{marks}"
    southeast = rf"(?:\p{{Line_Break=Complex_Context}}{marks})+"
    return regex.compile(rf"{low_line}*{run}(?:{low_line}+{run})*{low_line}*|{alone}|{southeast}")


def lucene_analyzer() -> Analyzer:
    """What Lucene's EnglishAnalyzer does: standard words, possessive 's off, lower case, its 33 stop words out, Porter
    stems.

    Known differences: the stemmer is Snowball's `porter`, the algorithm as published, and Lucene's has two later rules
    (-bli and -logi, as in "possibly" and "archaeology"); words of more than 255 letters, which Lucene cuts, stay
    whole; emoji, which it keeps as words, are left out.

    Source: org.apache.lucene.analysis.en.EnglishAnalyzer
    """
    words, possessive = lucene_words(), regex.compile(r"['\u2019\uff07][sS]$")
    stem = lru_cache(maxsize=1 << 16)(Stemmer.Stemmer("porter").stemWord)
    stops = frozenset(STOPWORDS_EN)  # bm25s has Lucene's list

    def terms(text: str) -> list[str]:
        lowered = (possessive.sub("", word).lower() for word in words.findall(text))
        return [stem(word) if len(word) > 2 else word for word in lowered if word not in stops]

    return terms


def analyzer_of(name: str) -> Analyzer:
    """The analyser `english`, `lucene` or `plain`.

    Raises:
        InputError: there is none by that name.
    """
    known = {"english": english_analyzer, "lucene": lucene_analyzer, "plain": lambda: plain}
    if name not in known:
        raise InputError(f"`retrieval.analyzer` must be one of {', '.join(known)}, got `{name}`.")
    return known[name]()
