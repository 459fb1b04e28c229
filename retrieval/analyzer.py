"""Analyzers: functions from text to terms, used for documents and queries alike."""

import unicodedata
from collections.abc import Callable
from functools import lru_cache

import regex
import Stemmer
from bm25s.stopwords import STOPWORDS_EN

Analyzer = Callable[[str], list[str]]
VERSION = 1  # part of the name of an index; increase it when the terms of an analyzer change
WORD = regex.compile(r"[\p{L}\p{M}\p{N}_]+")  # \p{M}: vowel signs, which `\w` excludes


def plain(text: str) -> list[str]:
    """Lower-case words in composed Unicode form (NFC)."""
    return WORD.findall(unicodedata.normalize("NFC", text).lower())


def english_analyzer() -> Analyzer:
    """Lower case, no English stop words, Snowball stems."""
    stem = lru_cache(maxsize=1 << 16)(Stemmer.Stemmer("english").stemWord)
    stop_words = frozenset(STOPWORDS_EN)
    return lambda text: [stem(word) for word in plain(text) if word not in stop_words]


def lucene_words() -> regex.Pattern:
    """Pattern of the words of Lucene's StandardTokenizer: segments between Unicode word boundaries (UAX #29) that
    contain a letter or digit. "don't", "U.S.A" and "3.5" are one word each, "wi-fi" is two, every ideograph is one."""
    marks = r"[\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}]*"
    letter = rf"[\p{{WB=ALetter}}\p{{WB=Hebrew_Letter}}]{marks}"
    digit = rf"\p{{WB=Numeric}}{marks}"
    between = r"\p{WB=MidNumLet}\p{WB=Single_Quote}"
    joined = rf"{letter}(?:[\p{{WB=MidLetter}}{between}]{marks}(?={letter}))?"
    number = rf"{digit}(?:[\p{{WB=MidNum}}{between}]{marks}(?={digit}))?"
    katakana, low_line = rf"(?:\p{{WB=Katakana}}{marks})+", rf"(?:\p{{WB=ExtendNumLet}}{marks})"
    run = rf"(?:(?:{joined}|{number})+|{katakana})"
    ideograph = rf"[\p{{Script=Han}}\p{{Script=Hiragana}}]{marks}"
    southeast_asian = rf"(?:\p{{Line_Break=Complex_Context}}{marks})+"
    return regex.compile(rf"{low_line}*{run}(?:{low_line}+{run})*{low_line}*|{ideograph}|{southeast_asian}")


def lucene_analyzer() -> Analyzer:
    """Lucene's EnglishAnalyzer: standard words, no possessive 's, lower case, no stop words (33), Porter stems.

    Known differences: the stemmer is the published Porter algorithm, while Lucene's has two later rules (-bli and
    -logi, as in "possibly" and "archaeology"); words of more than 255 letters stay whole, while Lucene splits them;
    emoji are dropped, while Lucene keeps them as words.

    Source: org.apache.lucene.analysis.en.EnglishAnalyzer
    """
    words, possessive = lucene_words(), regex.compile(r"['\u2019\uff07][sS]$")
    stem = lru_cache(maxsize=1 << 16)(Stemmer.Stemmer("porter").stemWord)
    stop_words = frozenset(STOPWORDS_EN)  # bm25s has Lucene's list

    def analyze(text: str) -> list[str]:
        lowered = (possessive.sub("", word).lower() for word in words.findall(text))
        return [stem(word) if len(word) > 2 else word for word in lowered if word not in stop_words]

    return analyze


ANALYZERS: dict[str, Callable[[], Analyzer]] = {  # `retrieval.analyzer` -> function that builds it
    "english": english_analyzer,
    "lucene": lucene_analyzer,
    "plain": lambda: plain,
}
