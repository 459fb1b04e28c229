"""Which values settings may have."""

import math
import re
from dataclasses import fields
from typing import Any
from urllib.parse import urlsplit

from core.data_sources import FILE_FIELDS as SET_FIELDS
from core.errors import InputError, nearest, short
from core.settings import SYSTEMS, DataSettings, RetrievalSettings, Settings


def check_ranges(settings: Settings) -> None:
    """Refuse values outside their range.

    Raises:
        InputError: names the setting, the value and the range.
    """
    at_least = {
        "rewriter.n": 2, "rewriter.max_new_tokens": 1, "rewriter.batch_tokens": 1, "generator.max_new_tokens": 1,
        "generator.batch_tokens": 1, "retrieval.k": 1, "retrieval.depth": 1, "scoring.alpha": 0, "pairs.min_gap": 0,
        "evaluation.resamples": 1, "retrieval.k1": 0, "run.limit": 1, "scoring.samples": 1, "scoring.sample_tokens": 1,
        "data.pool": 0, "retrieval.rrf_k": 0, "retrieval.retries": 0, "retrieval.max_length": 1,
        "retrieval.batch_tokens": 1, "run.threads": 1, "rewriter.history_messages": 0, "rewriter.history_words": 1,
        "rewriter.question_weight": 1, "generator.document_tokens": 1, "generator.history_tokens": 0,
        "scoring.reply_tokens": 1, "train.rounds": 1,
    }  # fmt: skip
    shares = ["pairs.drop_fraction", "rewriter.top_p", "scoring.fallback", "run.max_failed_fraction", "retrieval.b"]
    for section in fields(settings):
        held = getattr(settings, section.name)
        for name, value in (held if isinstance(held, dict) else vars(held)).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"`{section.name}.{name}` must be a finite number, got {value}.")
    for key, least in at_least.items():
        value = value_of(settings, key)
        if value is not None and value < least:
            raise InputError(f"`{key}` must be at least {least}, got {value}.")
    for key in shares:
        if not 0 <= value_of(settings, key) <= 1:
            raise InputError(f"`{key}` must be from 0 to 1, got {value_of(settings, key)}.")
    if not 0 <= settings.run.seed < 2**32:
        raise InputError(f"`run.seed` must be from 0 to {2**32 - 1}, got {settings.run.seed}.")
    if settings.rewriter.top_p == 0:
        raise InputError("`rewriter.top_p` must be above 0, got 0; 1 keeps the whole distribution.")
    if settings.generator.adapter and not settings.generator.model:
        raise InputError("`generator.adapter` needs `generator.model`: the model that it belongs to.")
    if not settings.run.dir.strip():
        raise InputError("`run.dir` must name a folder, got ''.")
    if settings.rewriter.temperature < 0.01:
        raise InputError(f"`rewriter.temperature` must be at least 0.01, got {settings.rewriter.temperature}.")
    check_data(settings.data)
    check_engines(settings.retrieval, len(settings.data.sets))
    for number, example in enumerate(settings.rewriter.examples):
        if example.keys() != {"conversation", "rewrite"} or not all(text.strip() for text in example.values()):
            raise InputError(
                f"`rewriter.examples[{number}]` must hold a `conversation` and its `rewrite`, got {short(example)}."
            )
    systems, known = settings.evaluation.systems, list(SYSTEMS)
    unknown = [name for name in systems if name not in known]
    if unknown:
        raise InputError(f"`evaluation.systems` has `{unknown[0]}`; {nearest(unknown[0], known)}")
    if not systems or len(set(systems)) < len(systems):
        raise InputError(f"`evaluation.systems` must name systems, each once, of {', '.join(known)}; got {systems}.")


def check_data(data: DataSettings) -> None:
    """Refuse data sets that cannot be told apart, and shares that leave nothing.

    Raises:
        InputError: names the setting, the value and the way out.
    """
    for name, files in data.sets.items():
        if not isinstance(name, str) or not re.fullmatch(r"[\w-]+", name):
            raise InputError(f"`data.sets` has the name {name!r}; use letters, digits, `_` and `-`.")
        if not isinstance(files, dict):
            raise InputError(
                f"`data.sets.{name}` must hold files, such as {{train: FILE, corpus: FILE}}; got {short(files)}."
            )
        for field, value in files.items():
            if field not in SET_FIELDS:
                raise InputError(f"`data.sets.{name}` has `{field}`; {nearest(str(field), list(SET_FIELDS))}")
            if not isinstance(value, str | None):
                raise InputError(f"`data.sets.{name}.{field}` must be a text or null, got {short(value)}.")
    flat = [field for field in SET_FIELDS if getattr(data, field)]
    if data.sets and flat:
        raise InputError(
            f"`data.{flat[0]}` and `data.sets` are both set; move `{flat[0]}` into a set of `data.sets`, or leave one "
            f"of the two out (`--data.{flat[0]} null`)."
        )
    if data.sets and data.format == "tiny_world":
        raise InputError("`data.sets` needs files; `data.format: tiny_world` makes its own. Leave one of the two out.")
    if data.test_share is not None:
        check_test_share(data)
    if not 0 <= data.development_share < 1:
        raise InputError(f"`data.development_share` must be at least 0 and below 1, got {data.development_share}.")
    if data.evaluate_on == "development" and not data.development_share:
        raise InputError(
            "`data.evaluate_on: development` needs `data.development_share`, such as `--data.development_share 0.2`."
        )


def check_test_share(data: DataSettings) -> None:
    """Refuse a share that holds out nothing, or everything.

    Raises:
        InputError: it does; says what to change.
    """
    if not 0 < data.test_share < 1:
        raise InputError(f"`data.test_share` must be between 0 and 1, got {data.test_share}; null holds out nothing.")
    sets = data.sets or {"": {field: getattr(data, field) for field in SET_FIELDS}}
    if data.format == "tiny_world" or all(files.get("test") for files in sets.values()):
        raise InputError(
            "`data.test_share` is for a `train` file without a `test` file beside it, but there is a `test` file; "
            "leave one of the two out (`--data.test null`)."
        )
    for name, files in sets.items():
        if files.get("qrels") and not files.get("test"):
            section = f"data.sets.{name}" if name else "data"
            raise InputError(
                f"`{section}.qrels` belongs to `{section}.test`, which is not set; gold passages of turns that "
                f"`data.test_share` holds out are in `{section}.train_qrels`."
            )


def check_engines(retrieval: RetrievalSettings, sets: int = 0) -> None:
    """Refuse engines without what they need.

    Args:
        retrieval: the settings.
        sets: number of `data.sets`, each with a collection of its own.

    Raises:
        InputError: names the setting that is missing or does not fit.
    """
    engines = retrieval.hybrid if retrieval.engine == "hybrid" else [retrieval.engine]
    if retrieval.engine == "hybrid" and len(set(engines)) != 2:
        raise InputError(f"`retrieval.hybrid` must name two engines, such as [bm25s, dense]; got {engines}.")
    for engine, name in (("http", "url"), ("http", "index"), ("http", "fields"), ("dense", "encoder")):
        if engine in engines and not getattr(retrieval, name):
            raise InputError(
                f"`retrieval.engine: {engine}` needs `retrieval.{name}`; set it with `--retrieval.{name} ...`."
            )
    if "http" in engines:
        address = urlsplit(retrieval.url)
        if address.username or address.password:  # settings are logged and recorded
            raise InputError(
                "`retrieval.url` holds credentials; take them out and set SEARCH_USER and SEARCH_PASSWORD in the "
                "environment."
            )
        if address.scheme not in ("http", "https") or not address.hostname:
            raise InputError(f"`retrieval.url` must read https://HOST:PORT, got {retrieval.url!r}.")
    shared = "http" if "http" in engines else "lucene" if "lucene" in engines and retrieval.prebuilt else None
    if sets > 1 and shared:
        name = "index" if shared == "http" else "prebuilt"
        raise InputError(
            f"`retrieval.{name}` names one index, but `data.sets` has {sets} collections; run each set alone, or "
            "choose an engine that makes an index of each collection, such as `--retrieval.engine bm25s`."
        )
    if "bm25s" in engines and retrieval.bm25_variant == "okapi":
        raise InputError(
            "`retrieval.bm25_variant: okapi` is for `retrieval.engine: rank_bm25`; bm25s has `lucene`, `plus` and `l`."
        )


def value_of(settings: Settings, key: str) -> Any:
    section, name = key.split(".")
    return getattr(getattr(settings, section), name)
