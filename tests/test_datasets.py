"""Published data sets, read from small files in their own format: turns, gold passages, bad records, whole sets."""

import json
import zipfile
from dataclasses import replace

import pytest

from core.data_sources import DataSource
from core.errors import InputError
from core.json_records import read_records
from core.records import Passage, Turn
from rewriter.conversations import load_turns, read_turns
from rewriter.datasets import mtrag, qrecc, topiocqa
from rewriter.datasets.__main__ import FULL, check_counts, write_corpus
from rewriter.datasets.__main__ import main as convert
from tests.conftest import ROOT, call, settings_of
from train.evaluation import select_systems

FIXTURES = ROOT / "tests/fixtures"
TOPIOCQA, TOPIOCQA_GOLD = (FIXTURES / "topiocqa" / f"topiocqa_{name}dev.json" for name in ("", "all_history_"))
QRECC, SCAI = (FIXTURES / "qrecc" / name for name in ("qrecc_test.json", "scai-qrecc21-test-turns.json"))
MTRAG, MTRAG_QRELS = (FIXTURES / "mtrag" / name for name in ("reference.jsonl", "clapnq/qrels/dev.tsv"))


def by_id(turns):
    return {turn.id: turn for turn in turns}


def changed(path, tmp_path, change, number=0):
    """Copy a JSON list and change one record."""
    records = json.loads(path.read_text())
    change(records[number])
    copy = tmp_path / path.name
    copy.write_text(json.dumps(records))
    return copy


# ------------------------------------------------------------------ TopiOCQA


def test_topiocqa_turn():
    turn = by_id(topiocqa.read(TOPIOCQA, TOPIOCQA_GOLD))["1_2"]
    assert turn == Turn(
        id="1_2",
        history=(
            {"role": "user", "content": "who keeps the velmora lighthouse"},
            {"role": "assistant", "content": "Ines Tarrow"},
        ),
        question="how tall is it",
        answers=("41 metres", "41 m"),
        relevant={"101": 1},
        conversation="1",
        kind="follow_up",
        reply="41 metres",
    )


def test_topiocqa_kinds_follow_the_topic():
    kinds = [turn.kind for turn in topiocqa.read(TOPIOCQA)]
    assert kinds == ["first", "follow_up", "switch", "return", "first", "follow_up"]


def test_topiocqa_unanswerable_is_no_answer():
    turns = by_id(topiocqa.read(TOPIOCQA, TOPIOCQA_GOLD))
    assert turns["2_2"].answers == () and turns["1_4"].answers == ("red and white",)
    assert turns["2_2"].reply == "" and turns["1_4"].reply == "red and white"
    assert turns["1_1"].answers == ("Ines Tarrow", "Ines Tarrow, since 1931")  # each once


def test_topiocqa_gold_from_the_file_itself_and_from_qrels(tmp_path):
    own = changed(TOPIOCQA, tmp_path, lambda r: r.update(Gold_passage={"id": "wiki:102", "title": "t", "text": "x"}))
    turns = topiocqa.read(own)
    assert turns[0].relevant == {"102": 1} and turns[1].relevant == {}
    (tmp_path / "dev.trec").write_text("1-1 0 102 1\n1_2\t0\t101\t1\n")
    turns = topiocqa.read(TOPIOCQA, tmp_path / "dev.trec")
    assert [turn.relevant for turn in turns[:3]] == [{"102": 1}, {"101": 1}, {}]


def test_topiocqa_as_json_lines_is_the_same(tmp_path):
    path = tmp_path / "topiocqa_valid.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in json.loads(TOPIOCQA.read_text())))
    assert topiocqa.read(path) == topiocqa.read(TOPIOCQA)


# ------------------------------------------------------------------ QReCC


def test_qrecc_turn_of_apples_file():
    turn = qrecc.read(QRECC)[1]
    assert (turn.id, turn.question, turn.rewrite) == ("10_2", "What did it make?", "What did Halden Mill make?")
    assert (turn.answers, turn.relevant, turn.kind) == (("Paper, from flax and rags.",), {}, "follow_up")
    assert turn.reply == "Paper, from flax and rags."
    assert [message["role"] for message in turn.history] == ["user", "assistant"]


def test_qrecc_gold_is_found_where_apples_file_skips_a_number():
    turns = by_id(qrecc.read(QRECC, SCAI))
    assert turns["10_4"].relevant == {"https://example.org/flood_p2": 1}
    assert turns["10_2"].relevant == {"https://example.org/halden_p1": 1, "https://example.org/paper_p4": 1}


def test_qrecc_without_context_takes_the_turns_before():
    apple, scai = qrecc.read(QRECC), qrecc.read(SCAI)
    assert [turn.id for turn in scai] == ["10_1", "10_2", "10_3", "11_1", "11_2"]
    for one, other in zip(apple, scai, strict=True):
        assert (one.history, one.question, one.rewrite, one.answers, one.kind, one.reply) == (
            other.history, other.question, other.rewrite, other.answers, other.kind, other.reply,
        )  # fmt: skip
    assert [len(turn.relevant) for turn in scai] == [1, 2, 1, 0, 1]


def test_qrecc_empty_answer_is_no_answer_and_no_message():
    turns = by_id(qrecc.read(SCAI))
    assert turns["11_1"].answers == () and turns["11_1"].reply == ""
    assert turns["11_2"].history == ({"role": "user", "content": "Tell me about the tarn owl"},)
    assert turns["11_2"].depth == 2


def test_qrecc_gold_from_qrels(tmp_path):
    (tmp_path / "qrels.tsv").write_text("QReCC-Test_11_2\t0\thttps://example.org/owl_p9\t1\n")
    assert by_id(qrecc.read(QRECC, tmp_path / "qrels.tsv"))["11_2"].relevant == {"https://example.org/owl_p9": 1}


# ------------------------------------------------------------------ MTRAG


def test_mtrag_turn():
    turn = mtrag.read(MTRAG, MTRAG_QRELS)[1]
    assert turn == Turn(
        id="3f0c_2",
        history=(
            {"role": "user", "content": "who wrote the Osswald charter"},
            {"role": "assistant", "content": "Margit Loew wrote it."},
        ),
        question="when?",
        answers=("It was signed in 1644.",),
        relevant={"700_91-180-0-89": 1},
        rewrite="When was the Osswald charter signed?",
        conversation="3f0c",
        kind="follow_up",
        reply="It was signed in 1644.",
    )


def test_mtrag_qrels_choose_the_domain():
    assert [turn.id for turn in mtrag.read(MTRAG, MTRAG_QRELS)] == ["3f0c_1", "3f0c_2", "3f0c_3"]
    everything = mtrag.read(MTRAG)
    assert [turn.id for turn in everything] == ["3f0c_1", "3f0c_2", "3f0c_3", "77ab_1"]
    assert not any(turn.relevant or turn.rewrite for turn in everything)


def test_mtrag_apology_is_no_answer():
    turn = mtrag.read(MTRAG, MTRAG_QRELS)[2]
    assert (turn.answers, turn.relevant, turn.rewrite) == ((), {}, None)
    assert turn.reply == "I'm sorry, but I don't have the answer to your question."


def test_reference_row_needs_a_rewrite_of_measured_turns_alone():
    turns = mtrag.read(MTRAG, MTRAG_QRELS)
    settings = settings_of("--evaluation.systems", "[original, reference]", "--evaluation.answers", "false")
    assert turns[2].rewrite is None and select_systems(settings, {}, turns) == ("original", "reference")
    more = [*turns, replace(turns[1], rewrite=None)]
    assert select_systems(settings, {}, more) == ("original",)


def test_mtrag_files_of_different_releases_are_refused(tmp_path):
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels/dev.tsv").write_text("query-id\tcorpus-id\tscore\nc972_1724711083\t8220-1\t1\n")
    with pytest.raises(InputError, match="first query id is `c972_1724711083`.*one commit of the repository"):
        mtrag.read(MTRAG, tmp_path / "qrels/dev.tsv")


# ------------------------------------------------------------------ bad records


@pytest.mark.parametrize(
    ("path", "change", "expected"),
    [
        (TOPIOCQA, lambda r: r.pop("Topic"), "record 1: the field `Topic` is missing"),
        (TOPIOCQA, lambda r: r.update(Turn_no="two"), "record 1: `Turn_no` must be a whole number, got 'two'"),
        (
            TOPIOCQA,
            lambda r: r.update(Question=" "),
            "record 1: `Question` must be a string that is not empty, got ' '",
        ),
        (
            TOPIOCQA,
            lambda r: r.update(Context=["only a question"]),
            "record 1: `Context` must be .* questions and answers",
        ),
        (TOPIOCQA, lambda r: r.update(Turn_no=2), "record 2: the id `1_2` is repeated"),
        (
            TOPIOCQA,
            lambda r: r["Additional_answers"][1].pop("Answer"),
            r"record 1: `Additional_answers\[1\].Answer` is missing",
        ),
        (TOPIOCQA, lambda r: r.update(Gold_passage="102"), "record 1: `Gold_passage` must be an object, got '102'"),
        (QRECC, lambda r: r.pop("Rewrite"), "record 1: the field `Rewrite` is missing"),
        (QRECC, lambda r: r.update(Answer=None), "record 1: the field `Answer` is missing"),
        (SCAI, lambda r: r.update(Truth_passages="p"), "record 1: `Truth_passages` must be a list, got 'p'"),
        (SCAI, lambda r: r.update(Turn_no=3), "record 1: turn 3 of conversation 10 has no `Context`"),
    ],
)
def test_bad_records_are_named(tmp_path, path, change, expected):
    reader = topiocqa if path == TOPIOCQA else qrecc
    with pytest.raises(InputError, match=rf"{path.name}: {expected}" if "record" in expected else expected):
        reader.read(changed(path, tmp_path, change))


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("input", [], ":1: `input` must be messages that end with the user's question"),
        ("input", [{"speaker": "bot", "text": "x"}], r":1: `input\[0\].speaker` must be 'user' or 'agent', got 'bot'"),
        ("task_id", 7, ":1: `task_id` must be a string"),
        ("targets", "x", ":1: `targets` must be a list, got 'x'"),
    ],
)
def test_bad_lines_of_mtrag_are_named(tmp_path, field, value, expected):
    first, *rest = MTRAG.read_text().splitlines()
    path = tmp_path / "reference.jsonl"
    path.write_text("\n".join([json.dumps(json.loads(first) | {field: value}), *rest]))
    with pytest.raises(InputError, match=f"reference.jsonl{expected}"):
        mtrag.read(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[\n{"Turn_no": 1},\n{oops}]', "turns.json:3: not valid JSON"),
        ("[]", "turns.json: no turns in the file"),
        ("[7]", "turns.json: record 1: expected a JSON object, got int"),
        ('[{"Question": "\\ud800"}]', "turns.json: record 1: a string contains half a character"),
    ],
)
def test_bad_files_are_named(tmp_path, text, expected):
    (tmp_path / "turns.json").write_text(text)
    with pytest.raises(InputError, match=expected):
        topiocqa.read(tmp_path / "turns.json")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1_1 0 102 1\n1_2 0 101\n", "qrels.trec:2: expected `query 0 document grade`, got '1_2 0 101'"),
        ("1_1 0 102 1\n1_2 0 101 yes\n", "qrels.trec:2: the grade must be a whole number, got `yes`"),
        ("query-id corpus-id score\n1_1 0 102 1\n", "qrels.trec:2: expected `query-id corpus-id score`"),
        ("first 0 102 1\n", "the query id `first` does not end in `<conversation>_<turn>`"),
        ("7_1 0 102 1\n", "no gold passage for any turn of .*first turn: `1_1`"),
        ("\n", "the file is empty; expected lines `query 0 document grade`"),
    ],
)
def test_bad_qrels_are_named(tmp_path, text, expected):
    (tmp_path / "qrels.trec").write_text(text)
    with pytest.raises(InputError, match=expected):
        topiocqa.read(TOPIOCQA, tmp_path / "qrels.trec")


# ------------------------------------------------------------------ in a run, and as a command


def test_a_run_reads_its_format():
    source = DataSource("", "topiocqa", test=str(TOPIOCQA), qrels=str(TOPIOCQA_GOLD))
    assert list(load_turns([source], "test", 2)) == topiocqa.read(TOPIOCQA, TOPIOCQA_GOLD)[:2]
    trained = DataSource("", "topiocqa", train=str(TOPIOCQA), train_qrels=str(TOPIOCQA_GOLD))
    assert load_turns([trained], "train").turns == load_turns([source], "test").turns


def test_other_gold_passages_are_another_input():
    without = DataSource("", "topiocqa", test=str(TOPIOCQA))
    fingerprints = [
        load_turns([source], "test").fingerprint for source in (without, replace(without, qrels=str(TOPIOCQA_GOLD)))
    ]
    assert fingerprints[0] != fingerprints[1]


def test_gold_passages_of_their_own_need_a_published_format():
    with pytest.raises(InputError, match="`data.qrels` needs a published `data.format`"):
        load_turns([DataSource("", "records", test=str(TOPIOCQA), qrels=str(TOPIOCQA_GOLD))], "test")
    with pytest.raises(InputError, match="`data.qrels`: no file at gone.tsv"):
        load_turns([DataSource("", "mtrag", test=str(MTRAG), qrels="gone.tsv")], "test")


@pytest.mark.parametrize(("name", "split"), FULL)
def test_counts_of_the_whole_set(name, split):
    turns = [Turn(str(i), (), "q", relevant={"d": 1}) for i in range(FULL[name, split])]
    unlabelled = Turn("more", (), "q")
    check_counts(name, split, turns)
    with pytest.raises(InputError, match=f"{FULL[name, split]} turns.*, but this file has {FULL[name, split] - 1};"):
        check_counts(name, split, turns[1:])
    if name == "qrecc":
        check_counts(name, split, [*turns, unlabelled])
    else:
        with pytest.raises(InputError, match=f"this file has {FULL[name, split] + 1};"):
            check_counts(name, split, [*turns, unlabelled])


def test_convert_writes_the_projects_own_form(tmp_path):
    words = ["--format", "qrecc", "--split", "test", "--turns", SCAI]
    output = call(convert, *words, "--output", tmp_path / "turns.jsonl")
    assert "5 turns of 2 conversations, 4 with gold passages" in output
    assert read_turns(tmp_path / "turns.jsonl") == qrecc.read(SCAI)
    assert "reply" in json.loads((tmp_path / "turns.jsonl").read_text().splitlines()[0])
    output = call(convert, *words, "--output", tmp_path / "no.jsonl", "--full", ok=False)
    assert "the test split of qrecc has 8209 turns with gold passages, but this file has 4" in output
    assert not (tmp_path / "no.jsonl").exists()


@pytest.fixture
def passages(tmp_path):
    """The passages of a domain in the published format: a zip archive with one file of JSON lines."""
    ids = ("700_0-90-0-90", "700_91-180-0-89", "701_0-50-0-50")
    records = [{"_id": i, "id": i, "url": "u", "title": "Charter", "text": f"Charter\nPart {i}."} for i in ids]
    path = tmp_path / "clapnq.jsonl.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("clapnq.jsonl", "".join(json.dumps(record) + "\n" for record in records))
        archive.writestr("__MACOSX/._clapnq.jsonl", b"\x00\x05\x16\x07")
    return path


def test_convert_writes_a_domain_of_mtrag(tmp_path, passages):
    words = ["--format=mtrag", "--split=test", "--turns", MTRAG, "--qrels", MTRAG_QRELS, "--passages", passages]
    output = call(convert, *words, "--output", tmp_path / "turns.jsonl", "--corpus", tmp_path / "corpus.jsonl")
    assert "3 passages" in output and "3 turns of 1 conversations, 2 with gold passages" in output
    assert read_turns(tmp_path / "turns.jsonl") == mtrag.read(MTRAG, MTRAG_QRELS)
    written = [passage for _, passage in read_records(Passage, tmp_path / "corpus.jsonl")]
    assert written == list(mtrag.read_passages(passages))
    assert written[0] == Passage("700_0-90-0-90", "Charter\nPart 700_0-90-0-90.", "Charter")
    with pytest.raises(InputError, match="`--passages` and `--corpus` need each other"):
        convert([*map(str, words), "--output", str(tmp_path / "turns.jsonl")])


def test_passages_of_mtrag_hold_the_gold_ones(tmp_path, passages):
    with pytest.raises(InputError, match=r"1 of 1 gold passages are missing, such as `702`; use .*passage_level"):
        write_corpus(passages, tmp_path / "corpus.jsonl", [Turn("1", (), "q", relevant={"702": 1})])
    assert not (tmp_path / "corpus.jsonl").exists()


def test_bad_passages_of_mtrag_are_named(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"_id": "1", "title": "", "text": "x"}\n{"id": "2", "text": "x"}\n')
    with pytest.raises(InputError, match="a.jsonl:2: the field `_id` is missing"):
        list(mtrag.read_passages(tmp_path / "a.jsonl"))
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("readme.txt", "nothing")
    with pytest.raises(InputError, match=r"b.zip: the archive must contain one .jsonl file, got 0"):
        list(mtrag.read_passages(tmp_path / "b.zip"))


@pytest.mark.parametrize(("value", "reply"), [("Ghent. ", "Ghent."), ("", ""), (" ", ""), (None, "")])
def test_reply_of_a_turn(tmp_path, value, reply):
    record = {"id": "c1_1", "history": [], "question": "Where was she born?", "reply": value}
    (tmp_path / "turns.jsonl").write_text(json.dumps(record))
    assert read_turns(tmp_path / "turns.jsonl")[0].reply == reply


def test_reply_that_is_no_text_is_named(tmp_path):
    (tmp_path / "turns.jsonl").write_text('{"id": "c1_1", "history": [], "question": "Where?", "reply": ["Ghent"]}')
    with pytest.raises(InputError, match=r"turns.jsonl:1: `reply` must be a string, got \['Ghent'\]"):
        read_turns(tmp_path / "turns.jsonl")
