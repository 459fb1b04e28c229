"""The bm25s engine: its scores equal rank-bm25 with Lucene's idf, and its index is built once."""

import json
import logging
import random
from dataclasses import replace
from itertools import pairwise

import pytest

from core.errors import InputError
from core.settings import RetrievalSettings
from retrieval.collection import open_collection
from retrieval.engines import build_engine, ranking_config, resolve_engine


def collection_of_words(folder, size, words=300, seed=0):
    """Passages of 1 to 40 words, the n-th word in proportion to 1 / n."""
    rng = random.Random(seed)
    drawn = [
        " ".join(
            rng.choices([f"w{n}" for n in range(words)], [1 / (n + 1) for n in range(words)], k=rng.randint(1, 40))
        )
        for _ in range(size)
    ]
    (folder / "c.jsonl").write_text(
        "".join(json.dumps({"id": f"d{i}", "text": t}) + "\n" for i, t in enumerate(drawn))
    )
    return open_collection(str(folder / "c.jsonl"), folder / "cache")


@pytest.mark.parametrize("variant", ["lucene", "plus", "l"])
def test_equals_rank_bm25(tmp_path, variant):
    collection, rng = collection_of_words(tmp_path, 3000), random.Random(1)  # more than the number of index parts
    settings = RetrievalSettings(bm25_variant=variant, k1=1.2, b=0.7)
    queries = [" ".join(f"w{int(300 * rng.random() ** 3)}" for _ in range(rng.randint(1, 8))) for _ in range(150)]
    exact, saved = (
        build_engine(replace(settings, engine=engine), collection).search(queries, 50)
        for engine in ("rank_bm25", "bm25s")
    )
    assert sum(map(len, exact)) > 5000
    for one, other in zip(exact, saved, strict=True):
        assert [hit.score for hit in other] == pytest.approx([hit.score for hit in one], abs=1e-4)
        known = {hit.doc: hit.score for hit in one}
        for hit in other:  # the same documents, except those whose scores differ by less than 1e-4
            assert hit.score == pytest.approx(known.get(hit.doc, one[-1].score), abs=1e-4)
        for better, worse in pairwise(other):
            assert better.score > worse.score or int(better.doc[1:]) < int(worse.doc[1:])


def test_the_index_is_made_once(tmp_path, caplog):
    caplog.set_level(logging.INFO, "rewriter")
    collection, settings = collection_of_words(tmp_path, 50), RetrievalSettings(engine="bm25s")
    first = build_engine(settings, collection).search(["w1 w7"], 5)
    assert "bm25s: indexed 50 passages" in caplog.text
    times = {path: path.stat().st_mtime_ns for path in (collection.folder / "bm25s").rglob("*.npy")}
    caplog.clear()
    again = open_collection(str(tmp_path / "c.jsonl"), tmp_path / "cache")
    assert build_engine(settings, again).search(["w1 w7"], 5) == first
    assert times and {path: path.stat().st_mtime_ns for path in times} == times
    assert "the index exists" in caplog.text and "indexed" not in caplog.text


@pytest.mark.parametrize("change", [{"k1": 2.0}, {"b": 0.9}, {"analyzer": "plain"}, {"bm25_variant": "plus"}])
def test_other_settings_make_another_index(tmp_path, change):
    collection, settings = collection_of_words(tmp_path, 50), RetrievalSettings(engine="bm25s")
    before = build_engine(settings, collection).search(["w1 w7"], 5)
    other = build_engine(replace(settings, **change), collection).search(["w1 w7"], 5)
    assert len([path for path in (collection.folder / "bm25s").iterdir() if path.is_dir()]) == 2
    exact = build_engine(replace(settings, engine="rank_bm25", **change), collection).search(["w1 w7"], 5)
    for expected, hits in ((exact, other), (before, build_engine(settings, collection).search(["w1 w7"], 5))):
        assert [hit.score for hit in hits[0]] == pytest.approx([hit.score for hit in expected[0]], abs=1e-4)


def test_leftovers_of_interrupted_indexing_are_overwritten(tmp_path):
    collection = collection_of_words(tmp_path, 50)
    settings = RetrievalSettings(engine="bm25s")
    name = "english-1-lucene-k1-0.9-b-0.4"
    (collection.folder / "bm25s" / f".{name}.partial").mkdir(parents=True)
    (collection.folder / "bm25s" / f".{name}.partial" / "data.csc.index.npy").write_text("half")
    assert build_engine(settings, collection).search(["w1"], 1)[0]
    assert [path.name for path in (collection.folder / "bm25s").iterdir() if path.is_dir()] == [name]


def test_a_collection_without_words_is_refused(tmp_path):
    (tmp_path / "c.jsonl").write_text('{"id": "d", "text": "..."}\n')
    collection = open_collection(str(tmp_path / "c.jsonl"), tmp_path / "cache")
    with pytest.raises(InputError, match="no words"):
        build_engine(RetrievalSettings(engine="bm25s"), collection)


def test_auto_chooses_by_size_and_is_recorded(tmp_path, caplog):
    caplog.set_level(logging.INFO, "rewriter")
    small, settings = collection_of_words(tmp_path, 20), RetrievalSettings()
    build_engine(settings, small)
    assert "retrieval: rank_bm25 for 20 passages" in caplog.text
    noted = ranking_config(settings, {"": small})
    assert (noted["engine"], noted["analyzer"], noted["k1"], noted["b"], noted["bm25_variant"]) == (
        "rank_bm25", "english", 0.9, 0.4, "lucene",
    )  # fmt: skip
    assert ranking_config(replace(settings, cache="elsewhere", retries=9), {"": small}) == noted
    (tmp_path / "c.jsonl").write_text("".join(f'{{"id": "{i}", "text": "w"}}\n' for i in range(20_001)))
    large = open_collection(str(tmp_path / "c.jsonl"), tmp_path / "cache")
    assert resolve_engine(settings, large) == "bm25s"
    assert resolve_engine(replace(settings, bm25_variant="okapi"), large) == "rank_bm25"  # bm25s has no `okapi`
