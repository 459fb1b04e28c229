"""Pooled collections: what is in them, when they are made, and that every figure made with them says so."""

import json
import subprocess
import sys

import pytest
from core.inputs import corpus_source, pool_file, same_data
from train.tables import label_of

from core.cli import read_settings
from core.errors import InputError
from retrieval.corpus import read_corpus
from tests.conftest import ROOT, finish
from train.pool import make_pool

FIXTURES = ROOT / "tests/fixtures/topiocqa"
# 101 to 105 are the gold passages; 200 to 203 share words with a question, 300 and 301 with none.
PASSAGES = {
    "300": "A harbour town with three bridges.",
    "101": "The Velmora Lighthouse is a red and white tower, 41 metres tall.",
    "102": "Ines Tarrow has kept the light since 1931.",
    "200": "Lighthouse keeping was a trade that ended with electric light.",
    "103": "Ines Tarrow was born in Brackwater.",
    "201": "The Pell lighthouse keeps no keeper: it was built without one.",
    "104": "The quillfish is a small fish of the river Oss.",
    "202": "Quillfish soup is eaten in spring.",
    "105": "Cold rivers with gravel beds.",
    "203": "Colour came late to the tower of Pell.",
    "301": "Snow fell on the pass for nine days.",
}


@pytest.fixture
def flags(tmp_path):
    lines = [json.dumps({"id": name, "text": text}) + "\n" for name, text in PASSAGES.items()]
    (tmp_path / "corpus.jsonl").write_text("".join(lines))
    return [
        "--run.dir", str(tmp_path / "run"), "--data.corpus", str(tmp_path / "corpus.jsonl"),
        "--data.format", "topiocqa", "--data.test", str(FIXTURES / "topiocqa_dev.json"), "--data.pool", "1",
        "--data.qrels", str(FIXTURES / "topiocqa_all_history_dev.json"),
    ]  # fmt: skip


def pool_of(settings):
    return [passage.id for _, passage in read_corpus(corpus_source(settings))]


def test_gold_passages_and_what_bm25_finds_beside_them(flags):
    settings = read_settings("", flags)
    make_pool(settings)
    found = pool_of(settings)
    assert found == [name for name in PASSAGES if name in found]  # in the collection's order
    assert {"101", "102", "103", "104", "105"} <= set(found)  # 105 shares no word with its question
    assert "300" not in found and "301" not in found
    # "who keeps the velmora lighthouse": 101 is no gold passage of this turn, and the best that is not
    # "what is a quillfish": 202; "and what colour is the tower": 203
    assert set(found) - {"101", "102", "103", "104", "105"} == {"202", "203"}


def test_more_passages_and_the_rewrite(flags, tmp_path):
    turn = {"id": "a_1", "history": [], "question": "who keeps it", "rewrite": "who keeps the lighthouse of Pell"}
    (tmp_path / "turns.jsonl").write_text(json.dumps(turn | {"relevant": {"201": 1}}) + "\n")
    settings = read_settings("", [*flags[:4], "--data.test", str(tmp_path / "turns.jsonl"), "--data.pool", "2"])
    make_pool(settings)
    # The question, "keep" after stop words and stems, finds the gold passage 201 and 200; the rewrite, "keep",
    # "lighthous" and "pell", finds these, 101 ("lighthous") and 203 ("pell", in fewer passages and so worth more).
    assert set(pool_of(settings)) == {"200", "201", "203"}


def test_it_is_made_once_and_never_from_something_else(flags):
    settings = read_settings("", flags)
    make_pool(settings)
    pool = pool_file(settings)
    before = pool.stat().st_mtime_ns
    make_pool(settings)
    assert pool.stat().st_mtime_ns == before
    with pytest.raises(InputError, match="pool.jsonl was made from something else: `data.pool` was 1, is 3"):
        make_pool(read_settings("", [*flags, "--data.pool", "3"]))
    with pytest.raises(InputError, match="`retrieval.b` was 0.4, is 0.75"):
        make_pool(read_settings("", [*flags, "--retrieval.b", "0.75"]))


def test_a_pool_without_its_note_is_made_again(flags):
    settings = read_settings("", flags)
    make_pool(settings)
    whole = pool_file(settings).read_text()
    pool_file(settings).with_suffix(".json").unlink()
    pool_file(settings).write_text(whole[:-20])
    make_pool(settings)
    assert pool_file(settings).read_text() == whole


def test_a_stage_alone_names_the_command(flags):
    with pytest.raises(InputError, match="pool.jsonl is missing; make it with `python -m train.pool`"):
        corpus_source(read_settings("", flags))


def test_another_run_folder_reads_the_same_pool(flags, tmp_path):
    settings = read_settings("", flags)
    make_pool(settings)
    data = same_data(settings)
    assert (data.corpus, data.pool, data.format) == (str(tmp_path / "run/data/pool.jsonl"), 0, "topiocqa")


def test_evaluation_with_a_pool_needs_no_model_and_says_pooled(flags, tmp_path):
    words = [*flags, "--evaluation.systems", "[original,history]", "--evaluation.answers", "false"]
    code = (
        "import sys; from train.evaluation import main; main(); "
        "sys.exit('torch was loaded' if 'torch' in sys.modules else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made = json.loads((tmp_path / "run/evaluation/metrics.json").read_text())
    assert made["pooled"] is True and made["turns"] == {"evaluated": 6, "total": 6, "answered": 5}
    assert list(made["by_kind"]) == ["first", "follow_up", "switch", "return"]
    assert {depth: part["turns"] for depth, part in made["by_depth"].items()} == {"1": 2, "2": 2, "3": 1, "4-6": 1}
    table = (tmp_path / "run/evaluation/table.md").read_text()
    assert table.startswith(label_of({"pooled": True})) and "*pooled*" in table and table in done.stdout
    assert f"pool: {len(pool_of(read_settings('', flags)))} of 11 passages, 5 of them gold" in done.stdout


def test_a_collection_that_is_a_pool_already_is_named_so(flags, tmp_path):
    words = [*flags, "--evaluation.systems", "[original]", "--evaluation.answers", "false", "--data.pool", "0"]
    finish([sys.executable, "-m", "train.evaluation", *words])
    assert json.loads((tmp_path / "run/evaluation/metrics.json").read_text())["pooled"] is True
    assert not (tmp_path / "run/data").exists()


def test_without_a_model_a_system_that_rewrites_is_refused(flags):
    words = [*flags, "--evaluation.systems", "[base]", "--evaluation.answers", "false"]
    said = finish([sys.executable, "-m", "train.evaluation", *words], ok=False)
    assert "`rewriter.model` is not set" in said
    said = finish([sys.executable, "train/dpo.py", *words], ok=False)
    assert "`rewriter.model` is not set" in said
