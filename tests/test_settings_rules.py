"""Rules over several settings; those of the data sets are in test_data_sets.py."""

import pytest

from core.cli import read_settings
from core.errors import InputError
from core.retrieval_settings import RetrievalSettings
from core.settings import GeneratorSettings, RunSettings, Settings

SERVED = ["--rewriter.served_model", "m", "--rewriter.url"]
HTTP = ["--retrieval.engine", "http", "--retrieval.index", "i", "--retrieval.url"]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--generator.adapter", "a"], "`generator.adapter` needs `generator.model`: the model that it belongs to."),
        (
            ["--evaluation.systems", "[base, base]"],
            "`evaluation.systems` must name one or more of original, history, base, base_examples, sft, dpo, "
            "reference, each once; got ['base', 'base'].",
        ),
        (
            ["--retrieval.engine", "hybrid", "--retrieval.hybrid", "[bm25s, bm25s]"],
            "`retrieval.hybrid` must name two engines, such as [bm25s, dense]; got ['bm25s', 'bm25s'].",
        ),
        (
            ["--retrieval.engine", "hybrid", "--retrieval.hybrid", "[bm25s, http]"],
            "`retrieval.engine: http` needs `retrieval.url`; set it with `--retrieval.url ...`.",
        ),
        (
            ["--retrieval.engine", "http", "--retrieval.url", "http://x"],
            "`retrieval.engine: http` needs `retrieval.index`; set it with `--retrieval.index ...`.",
        ),
        (
            [*HTTP, "http://x", "--retrieval.fields", "[]"],
            "`retrieval.engine: http` needs `retrieval.fields`; set it with `--retrieval.fields ...`.",
        ),
        (
            ["--retrieval.engine", "dense"],
            "`retrieval.engine: dense` needs `retrieval.encoder`; set it with `--retrieval.encoder ...`.",
        ),
        (
            [*HTTP, "search.example.org"],
            "`retrieval.url` must have the form https://HOST:PORT, got 'search.example.org'.",
        ),
        ([*HTTP, "http://[x"], "`retrieval.url` is not a URL, got 'http://[x' (Invalid IPv6 URL)."),
        (
            [*HTTP, "https://ann:secret@x"],
            "`retrieval.url` contains credentials or a query (`?...`); remove them and set SEARCH_USER and "
            "SEARCH_PASSWORD in the environment.",
        ),
        (
            [*HTTP, "https://x:port"],
            "`retrieval.url` is not a URL, got 'https://x:port' (Port could not be cast to integer value as 'port').",
        ),
        (
            [*SERVED, "https://ann:secret@x/v1"],
            "`rewriter.url` contains credentials or a query (`?...`); remove them and set OPENAI_API_KEY in the "
            "environment.",
        ),
        (
            [*SERVED, "https://x/v1?key=secret"],
            "`rewriter.url` contains credentials or a query (`?...`); remove them and set OPENAI_API_KEY in the "
            "environment.",
        ),
        ([*SERVED, "http://x:8000"], "`rewriter.url` must have the form https://HOST:PORT/v1, got 'http://x:8000'."),
        (
            ["--rewriter.url", "http://x:8000/v1"],
            "`rewriter.url` and `rewriter.served_model` together name a model on a server; set both or neither.",
        ),
        (
            ["--rewriter.served_model", "m"],
            "`rewriter.url` and `rewriter.served_model` together name a model on a server; set both or neither.",
        ),
        (
            [*HTTP, "http://x", "--data.sets", "{a: {}, b: {}}"],
            "`retrieval.index` names one index, but `data.sets` has 2 collections; run each set alone, or choose an "
            "engine that builds an index of each collection, such as `--retrieval.engine bm25s`.",
        ),
        (
            ["--retrieval.engine", "bm25s", "--retrieval.bm25_variant", "okapi"],
            "`retrieval.bm25_variant: okapi` is for `retrieval.engine: rank_bm25`; bm25s has `lucene`, `plus` and "
            "`l`.",
        ),
    ],
)
def test_settings_that_do_not_fit_are_named(flags, expected):
    with pytest.raises(InputError) as error:
        read_settings("", ["--run.dir", "x", *flags])
    assert str(error.value) == expected


def test_rules_hold_for_settings_made_in_python():
    with pytest.raises(InputError, match="needs `generator.model`"):
        GeneratorSettings(adapter="a")
    with pytest.raises(InputError, match="needs `retrieval.encoder`"):
        Settings(run=RunSettings(dir="x"), retrieval=RetrievalSettings(engine="dense"))
