"""Collections: every format is read once, bad records are named or counted, and ids map to texts."""

import gzip
import hashlib
import json
import logging
import os
import subprocess
import sys

import pyarrow
import pyarrow.parquet
import pytest

from core.data_sources import DataSource
from core.errors import InputError
from core.records import Passage
from retrieval.collection import open_collection, open_collections
from tests.conftest import ROOT

RECORDS = [
    {"id": "7", "text": 'She said "no",\tand left.', "title": "A play"},
    {"id": "é", "text": "Two\nlines."},
    {"id": "d3", "text": "The third."},
]
PASSAGES = [Passage(r["id"], r["text"], r.get("title", "")) for r in RECORDS]
JSONL = "".join(json.dumps(record) + "\n" for record in RECORDS)
TSV = 'id\ttext\ttitle\n7\t"She said ""no"",\tand left."\tA play\né\t"Two\nlines."\t\nd3\tThe third.\t\n'


def open_text(tmp_path, text, name="c.jsonl", **options):
    path = tmp_path / name
    data = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return open_collection(str(path), tmp_path / "cache", **options)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.jsonl", JSONL),
        ("c.json-lines", "\ufeff" + JSONL.replace("\n", "\r\n") + "\n\n"),
        ("c.jsonl.gz", JSONL),
        ("c.tsv", TSV),
        ("c.tsv.gz", TSV),
    ],
)
def test_every_text_format_gives_the_same_passages(tmp_path, name, text):
    assert list(open_text(tmp_path, text, name).passages()) == PASSAGES


def test_parquet_with_whole_numbers_as_ids(tmp_path):
    columns = {"text": ["one", "two"], "id": [5, 6], "title": [None, "T"], "other": [1.5, 2.5]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "c.parquet")
    reopened = open_collection(str(tmp_path / "c.parquet"), tmp_path / "cache")
    assert list(reopened.passages()) == [Passage("5", "one"), Passage("6", "two", "T")]
    assert reopened.contents(["6"]) == ["T\ntwo"]


def test_a_table_without_ids_is_named(tmp_path):
    pyarrow.parquet.write_table(pyarrow.table({"text": ["one"], "number": [5]}), tmp_path / "c.parquet")
    with pytest.raises(InputError, match=r"c.parquet:1: the field `id` is missing \(fields: `text`\)"):
        open_collection(str(tmp_path / "c.parquet"), tmp_path / "cache")


def test_a_data_set_by_its_hub_name(tmp_path, monkeypatch):
    """`datasets` prefers a local folder of that name to the Hub."""
    (tmp_path / "owner/name").mkdir(parents=True)
    (tmp_path / "owner/name/train.jsonl").write_text(JSONL)
    (tmp_path / "owner/name/test.jsonl").write_text(JSONL.replace("third", "fourth"))
    monkeypatch.chdir(tmp_path)
    sources = [
        DataSource("one", "records", corpus="owner/name"),
        DataSource("two", "records", corpus="owner/name:test"),
    ]
    collections = open_collections(sources, str(tmp_path / "cache"))
    assert list(collections["one"].passages()) == PASSAGES and collections["one"].identity
    assert collections["two"].contents(["d3"]) == ["The fourth."]
    assert collections["two"].identity != collections["one"].identity


def test_ids_rows_and_contents(tmp_path):
    many = "".join(json.dumps({"id": f"d{i}", "text": f"text {i}"}) + "\n" for i in range(10_050))  # two batches
    reopened = open_text(tmp_path, many)
    assert len(reopened) == 10_050
    assert reopened.ids([0, 9_999, 10_000, 10_049]) == ["d0", "d9999", "d10000", "d10049"]
    assert reopened.contents(["d10000", "d3", "d10049"]) == ["text 10000", "text 3", "text 10049"]
    assert "d9999" in reopened and "d10050" not in reopened and "" not in reopened
    with pytest.raises(InputError, match="`d10050` is not in the collection"):
        reopened.contents(["d1", "d10050"])


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("c.jsonl", '{"id": "d"}', r"c.jsonl:1: the field `text` is missing"),
        ("c.jsonl", '{"id": "d", "text": "x"}\n{"id": 7, "text": "x"}', r":2: `id` must be a string, got 7"),
        ("c.jsonl", '{"id": "d", "text": "  "}', r":1: `text` must be a string that is not empty, got '  '"),
        ("c.jsonl", '{"id": "d", "text": "x", "title": 3}', r":1: `title` must be a string, got 3"),
        ("c.jsonl", '\n{"id": "d", "text": "x"\n', r":2: not valid JSON"),
        ("c.jsonl", b'{"id": "d", "text": "x"}\n{"id": "e", "text": "\xff"}\n', r":2: not UTF-8 text \(byte 21"),
        ("c.jsonl", '{"id": "d", "text": "x"}\n{"id": "e", "text": "y"}\n{"id": "d", "text": "z"}\n',
         r"c.jsonl:3: the id `d` appears twice"),
        ("c.jsonl", "", "c.jsonl: the collection is empty"),
        ("c.tsv", "id\tcontents\n1\tx\n", r"c.tsv:1: the first line must name the columns `id`, `text`"),
        ("c.tsv", "id\ttext\ttitle\n1\tx\ty\n2\tx\n", r"c.tsv:3: 2 columns, but the header has 3"),
        ("c.tsv", "id\ttext\n1\t\n", r"c.tsv:2: `text` must be a string that is not empty, got ''"),
        ("c.tsv", b"id\ttext\n1\tx\n2\t\xff\n", r"c.tsv:3: the field `text` is not UTF-8"),
        ("c.xml", "<a/>", r"c.xml: a collection must be a .jsonl, .tsv"),
        ("c.tsv", "id\ttext\n1\tx\n2\ta\rb\n", r"c.tsv:3: not valid TSV \(new-line character"),
        ("c.parquet", "no parquet", r"c.parquet: cannot be read as parquet"),
    ],
)  # fmt: skip
def test_bad_collections_are_named(tmp_path, name, text, expected):
    with pytest.raises(InputError, match=expected):
        open_text(tmp_path, text, name)


@pytest.mark.parametrize(("name", "text"), [("c.jsonl.gz", JSONL), ("c.tsv.gz", TSV)])
def test_a_damaged_gzip_file_is_named(tmp_path, name, text):
    """`skip` does not apply to a truncated file."""
    packed = gzip.compress(text.encode())
    (tmp_path / name).write_bytes(packed[: len(packed) // 2])
    with pytest.raises(InputError, match=f"{name}: damaged gzip"):
        open_collection(str(tmp_path / name), tmp_path / "cache", on_bad="skip")


def test_a_missing_source_is_named(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"gone.jsonl: cannot be read \(No such file"):
        open_collection(str(tmp_path / "gone.jsonl"), tmp_path / "cache")
    for corpus, expected in (("data/gone.jsonl", "no file at data/gone.jsonl"), (None, "not set; name a file or")):
        with pytest.raises(InputError, match=f"`data.corpus`.*{expected}"):
            DataSource("", "records", corpus=corpus).check_corpus()


def test_bad_records_are_left_out_and_counted(tmp_path, caplog):
    caplog.set_level(logging.INFO, "rewriter")
    bad = JSONL + '{"id": "d4"}\n{oops\n' + JSONL.splitlines()[0] + '\n{"id": "d5", "text": "The last."}\n'
    reopened = open_text(tmp_path, bad, on_bad="skip")
    assert list(reopened.passages()) == [*PASSAGES, Passage("d5", "The last.")]
    assert reopened.contents(["d5"]) == ["The last."]
    assert "4 passages, 3 records skipped" in caplog.text and "c.jsonl:6: the id `7` appears twice" in caplog.text
    with pytest.raises(
        InputError, match=r"c.jsonl:4: the field `text` is missing.*3 bad records.*`--data.on_bad skip`"
    ):
        open_collection(str(tmp_path / "c.jsonl"), tmp_path / "cache")


def test_a_collection_of_bad_records_alone_is_refused(tmp_path):
    with pytest.raises(InputError, match="the collection is empty.*None of its 1 records.*c.jsonl:1"):
        open_text(tmp_path, '{"id": "d4"}\n', on_bad="skip")


def test_a_source_is_read_once(tmp_path, caplog):
    caplog.set_level(logging.INFO, "rewriter")
    first = open_text(tmp_path, JSONL)
    assert first.identity == hashlib.sha256(JSONL.encode()).hexdigest()
    assert first.folder == tmp_path / "cache" / first.identity[:16]
    assert caplog.text.count("collection: reading") == 1
    again = open_collection(str(tmp_path / "c.jsonl"), tmp_path / "cache")
    assert list(again.passages()) == PASSAGES and caplog.text.count("collection: reading") == 1
    changed = open_text(tmp_path, JSONL.replace("third", "fourth"))
    assert changed.identity != first.identity and changed.contents(["d3"]) == ["The fourth."]
    assert first.contents(["d3"]) == ["The third."]


def test_leftovers_of_interrupted_reading_are_overwritten(tmp_path):
    folder = tmp_path / "cache" / hashlib.sha256(JSONL.encode()).hexdigest()[:16]
    folder.mkdir(parents=True)
    (folder / ".passages.sqlite.partial").write_text("half")
    assert list(open_text(tmp_path, JSONL).passages()) == PASSAGES


def test_an_unusable_cache_is_named(tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(InputError, match="cache: collections cannot be stored in this folder.*`--retrieval.cache`"):
        open_text(tmp_path, JSONL)


def test_the_users_cache_is_where_xdg_says(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    (tmp_path / "c.jsonl").write_text(JSONL)
    assert (tmp_path / "xdg/query-rewriter-trainer") in open_collection(str(tmp_path / "c.jsonl")).folder.parents


@pytest.mark.slow
def test_processes_share_one_reading_and_one_index(tmp_path):
    many = "".join(json.dumps({"id": f"d{i}", "text": f"text {i} of some words"}) + "\n" for i in range(30_000))
    (tmp_path / "c.jsonl").write_text(many)
    code = (
        "from core.progress import set_up_logging; from core.settings import RetrievalSettings\n"
        "from retrieval.collection import open_collection; from retrieval.engines import build_engine\n"
        "set_up_logging(); collection = open_collection('c.jsonl')\n"
        "print(build_engine(RetrievalSettings(), collection).search(['text 29999'], 1)[0][0].doc)"
    )
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    outputs = [one.communicate(timeout=300)[0] for one in started]
    assert [one.returncode for one in started] == [0, 0] and all(text.endswith("d29999\n") for text in outputs)
    both = "".join(outputs)
    assert both.count("collection: reading") == both.count("bm25s: indexed 30000 passages") == 1
    assert both.count("retrieval: bm25s for 30000 passages") == 2 and both.count("the index exists") == 1
