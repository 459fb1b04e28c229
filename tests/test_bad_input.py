"""Bad input: each kind gives a one-line error with place and remedy, or a run whose records give the reason."""

import json
import shutil

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from core.adapters import check_adapter
from core.artifacts import read_json_texts
from core.cli import load_yaml, read_settings, run_command
from core.errors import InputError
from core.schema import settings_of
from core.settings import Settings
from core.trec import read_qrels, read_run
from retrieval.corpus import read_corpus
from rewriter.conversations import read_turns
from rewriter.datasets import READERS
from rewriter.datasets.mtrag import read_passages
from rewriter.import_chats import read_conversation
from scoring.items import read_items
from tests.conftest import ROOT, call, lines
from train.dpo import main

MODEL = ROOT / "configs/tiny-model"
TURN = {"id": "c_1", "history": [], "question": "Who founded Acme?"}
DOCUMENTS = [{"id": "d1", "text": "Ann Lee founded Acme."}, {"id": "d2", "text": "Ann Lee was born in Ghent."}]


def command(folder, turns=(TURN,), documents=DOCUMENTS, flags=()):
    """A command line that scores the sampled candidates and the question of some turns. Turns and documents are
    objects or lines of text."""
    for name, records in (("turns", turns), ("corpus", documents)):
        texts = (record if isinstance(record, str) else json.dumps(record) for record in records)
        (folder / f"{name}.jsonl").write_bytes("".join(text + "\n" for text in texts).encode())
    return [
        "--data.train", folder / "turns.jsonl", "--data.corpus", folder / "corpus.jsonl", "--run.dir", folder / "run",
        "--rewriter.model", MODEL, "--rewriter.n", 2, "--rewriter.max_new_tokens", 4, "--generator.max_new_tokens", 4,
        "--rewriter.include", "[question]", "--run.max_failed_fraction", 1, "--run.until", "round-1/scores", *flags,
    ]  # fmt: skip


def refused(folder, capsys, turns=(TURN,), documents=DOCUMENTS, flags=()):
    """The one-line error of a command that exits with status 2 before any stage has started."""
    words = [str(word) for word in command(folder, turns, documents, flags)]
    with pytest.raises(SystemExit) as end:
        run_command(lambda: main(words))
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and line.startswith("error: ") and not list(folder.glob("run/round-1/*/part*"))
    return line


# ------------------------------------------------------------------ one-line errors


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ([TURN, "{oops"], "turns.jsonl:2: not valid JSON: Expecting property name"),
        (["[1]"], "turns.jsonl:1: expected a JSON object, got list."),
        ([TURN | {"question": 3}], "turns.jsonl:1: `question` must be a string, got 3."),
        ([TURN | {"history": "x"}], "turns.jsonl:1: `history` must be a list, got 'x'."),
        ([TURN | {"history": [{"role": "bot", "content": "x"}]}], "`history[0].role` must be 'user' or 'assistant'"),
        ([TURN | {"relevant": {"d1": "1"}}], "turns.jsonl:1: `relevant.d1` must be a whole number, got '1'."),
        ([{"id": "c_1", "question": "x"}], "the field `history` is missing (fields: `id`, `question`)"),
        ([TURN | {"question": " \n"}], "turns.jsonl:1: `question` must be a string that is not empty, got ' \\n'."),
        ([TURN | {"id": "c\x1b[31m"}], "`id` must be a string without control characters, got 'c\\x1b[31m'"),
        ([TURN | {"question": "\ud800?"}], "turns.jsonl:1: a string contains half a character (a lone surrogate)."),
        (["\x00" * 8], "turns.jsonl:1: not valid JSON: Expecting value at column 1."),
        (['{"id": "c_1", "history": [], "question": "\x00"}'], "not valid JSON: Invalid control character"),
        ([TURN, TURN], "turns.jsonl:2: the id `c_1` is repeated; ids of turns must be unique."),
        ([], "turns.jsonl: no turns in the file; docs/data.md describes the format."),
    ],
)  # fmt: skip
def test_bad_turns_are_named(tmp_path, capsys, turns, expected):
    assert expected in refused(tmp_path, capsys, turns)


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        (["nothing"], "the collection is empty; expected passages with `id` and `text`. None of its 1 "
                      "records is valid; the first: "),
        ([*DOCUMENTS, {"id": "d3"}], "corpus.jsonl:3: the field `text` is missing (fields: `id`). There are 1 bad"),
        ([*DOCUMENTS, {"id": 3, "text": "x"}], "corpus.jsonl:3: `id` must be a string, got 3."),
        ([*DOCUMENTS, DOCUMENTS[0]], "corpus.jsonl:3: the id `d1` appears twice; ids must be unique. There are 1 bad"),
        ([*DOCUMENTS, {"id": "d3", "text": "\ud800"}], "corpus.jsonl:3: a string contains half a character"),
        ([*DOCUMENTS, "\x00\x00"], "corpus.jsonl:3: not valid JSON: Expecting value at column 1."),
        ([], "corpus.jsonl: the collection is empty; expected passages with `id` and `text`."),
    ],
)  # fmt: skip
def test_bad_documents_are_named(tmp_path, capsys, documents, expected):
    assert expected in refused(tmp_path, capsys, documents=documents)


def test_empty_passages_are_counted(tmp_path, capsys):
    empty = [{"id": f"e{number}", "text": text} for number, text in enumerate(["", " ", "\n"])]
    documents = [DOCUMENTS[0], *empty, "{", DOCUMENTS[1]]
    line = refused(tmp_path, capsys, documents=documents)
    assert "corpus.jsonl:2: `text` must be a string that is not empty, got ''. There are 4 bad records" in line
    assert "3 of them without text. `--data.on_bad skip` skips such records." in line
    output = call(main, *command(tmp_path, documents=documents, flags=["--data.on_bad", "skip"]))
    assert "round-1/scores: 1 turns" in output
    assert refused(tmp_path, capsys, documents=documents) == line


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--rewriter.temprature", 1], "unknown setting `rewriter.temprature`; did you mean `rewriter.temperature`?"),
        (["--retrieval.k", 0], "`retrieval.k` must be a whole number >= 1, got 0."),
        (
            ["--scoring.reward", "udcg"],
            "the reward `udcg` needs `relevant` in every turn; 1 of 1 turns of `data.train`",
        ),
        (["--rewriter.model", "./nowhere"], "`rewriter.model`: ./nowhere cannot be read: "),
    ],
)
def test_bad_settings_are_named(tmp_path, capsys, flags, expected):
    assert expected in refused(tmp_path, capsys, flags=flags)


def test_relevant_documents_that_are_unknown(tmp_path, capsys):
    """If all of them are unknown, the run stops; if some are, it warns and continues."""
    flags = [
        "--data.test",
        tmp_path / "turns.jsonl",
        "--run.until",
        "evaluation",
        "--evaluation.systems",
        "[original]",
    ]
    turns = [TURN | {"relevant": {"nowhere": 1}}]
    line = refused(tmp_path, capsys, turns, flags=flags)
    assert "no `relevant` document of the test turns is in the collection; the first is `nowhere`." in line
    words = command(tmp_path, [TURN | {"relevant": {"d1": 1, "nowhere": 1}}], flags=flags)
    output = call(main, *words, "--run.until", "null", "--run.only", "evaluation", "--evaluation.answers", "false")
    assert "1 of 2 relevant documents are not in the collection (first: `nowhere`)" in output


def test_a_run_folder_that_cannot_be_written_is_named(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    line = refused(tmp_path, capsys, flags=["--run.dir", tmp_path / "file/run"])
    assert f"`--run.dir`: {tmp_path}/file/run cannot be used (Not a directory); choose another folder." in line


@pytest.mark.parametrize("section", ["rewriter", "generator"])
def test_an_adapter_of_another_base_model_is_named_before_any_work(tmp_path, capsys, adapters, section):
    flags = [f"--{section}.model", MODEL, f"--{section}.adapter", adapters["first"]]
    line = refused(tmp_path, capsys, flags=flags)
    assert f"the adapter {adapters['first']} does not belong to `{MODEL}`: the shape of `base_model." in line


def test_a_damaged_adapter_is_refused(tmp_path, random_llama):
    (tmp_path / "adapter_model.safetensors").write_bytes(b"damaged" * 10)
    with pytest.raises(InputError, match=r"the adapter .* cannot be read: .*header"):
        check_adapter(str(random_llama), str(tmp_path))


def test_an_adapter_with_more_layers_than_the_model_is_refused(tmp_path, lm, random_llama, adapters):
    from peft import LoraConfig, get_peft_model

    from train.tiny.model import new_model

    check_adapter(str(random_llama), adapters["first"])
    deeper = new_model(lm.tokenizer, seed=1, width=64, layers=3)
    get_peft_model(deeper, LoraConfig(r=4, target_modules="all-linear")).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"layers\.2\..* is \[4, .* in the adapter and none in the model"):
        check_adapter(str(random_llama), str(tmp_path))


# ------------------------------------------------------------------ runs that complete


def first_record(folder, *command_line):
    """Run a command and return the record of the first turn in the stage `scores`."""
    call(main, *command_line)
    return lines(folder / "run/round-1/scores")[0]


def question_of(record):
    """The candidate that is the question itself."""
    return next(
        each for each in record["candidates"] if each["text"] == each["query"] and each["source"] == "question"
    )


@pytest.mark.parametrize(
    "text",
    [
        "Who \U0001f469‍\U0001f469‍\U0001f467 founded Acme \U0001f389?",
        "من أسس Acme؟ ‮מי ייסד",
        "Who\x01 founded\x07 \x1b[31mAcme\x7f?",
        "Who\x00 founded Acme?",
    ],
    ids=["emoji", "right-to-left", "control characters", "null bytes"],
)
def test_unusual_characters_are_kept(tmp_path, text):
    turn = TURN | {"question": text, "history": [{"role": "user", "content": text}]}
    record = first_record(tmp_path, *command(tmp_path, [turn], [{"id": "d1", "text": text}]))
    candidate = question_of(record)
    assert candidate["text"] == text and [hit["doc"] for hit in candidate["documents"]] == ["d1"]
    assert isinstance(candidate["score"], float) and not candidate.get("error")


def test_a_document_of_200_000_characters(tmp_path):
    """It does not fit the context and has a reason but no score; `generator.document_tokens` truncates it."""
    documents = [{"id": "d1", "text": "Ann Lee founded Acme. " * 9100}]
    record = first_record(tmp_path, *command(tmp_path, documents=documents))
    assert question_of(record)["error"] == "no document fits the generator's context"
    shutil.rmtree(tmp_path / "run")
    record = first_record(tmp_path, *command(tmp_path, documents=documents, flags=["--generator.document_tokens", 64]))
    assert isinstance(question_of(record)["score"], float)


def test_a_history_of_500_turns(tmp_path):
    roles = ("user", "assistant")
    history = [{"role": roles[number % 2], "content": f"Message {number} on Acme."} for number in range(1000)]
    record = first_record(tmp_path, *command(tmp_path, [TURN | {"history": history}]))
    assert record["counts"]["messages_left_out"] > 0
    assert question_of(record)["error"] == "no document fits the generator's context"


def test_a_model_without_a_chat_template(tmp_path):
    shutil.copytree(MODEL, tmp_path / "model")
    (tmp_path / "model/chat_template.jinja").unlink()
    record = first_record(tmp_path, *command(tmp_path, flags=["--rewriter.model", tmp_path / "model"]))
    assert isinstance(question_of(record)["score"], float)


# ------------------------------------------------------------------ random input

VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.lists(st.integers(), max_size=2),
    st.sampled_from(["\ud800", "\x00", "9" * 5000, {}, {"a": [{}]}, 10**40, "../x", [[]]]),
)  # fmt: skip
CONTENTS = [
    b"", b"[",
    b"[" * 100_000, b'{"a":' * 900, b"9" * 5000, b'[{"Turn_no": ' + b"9" * 5000 + b"}]", b"\xff\xfe", b"null",
    b"\xef\xbb\xbf", b"[null]", b"[[]]", b'"a"', b"\x00", b"PK\x03\x04" + b"x" * 30, b"\x1f\x8b\x08\x00", b"a\tb\n",
]  # fmt: skip
RECORDS = {
    "records": TURN | {"answers": ["a"], "relevant": {"d": 1}, "rewrite": "r", "reply": "y", "kind": "first"},
    "corpus": {"id": "d", "text": "t", "title": "x"},
    "topiocqa": {"Conversation_no": 1, "Turn_no": 1, "Question": "q", "Context": [], "Answer": "a", "Topic": "t",
                 "Additional_answers": [{"Answer": "z"}], "Gold_passage": {"id": "3"}},
    "qrecc": {"Conversation_no": 1, "Turn_no": 1, "Question": "q", "Context": ["a", "b"], "Truth_passages": ["p"],
              "Truth_rewrite": "x", "Truth_answer": "y"},
    "mtrag": {"task_id": "a<::>1", "conversation_id": "a", "turn": "1", "Collection": "c", "targets": [{"text": "a"}],
              "input": [{"speaker": "user", "text": "x"}], "Answerability": ["ANSWERABLE"]},
    "passages": {"_id": "a", "text": "x", "title": "y"},
    "chats": {"id": "c", "messages": [{"role": "user", "content": "x"}, {"from": "gpt", "value": "y"}]},
    "items": {"question": "q", "passages": [{"text": "a", "is_relevant": True}], "answers": ["x"], "history": []},
}  # fmt: skip


def stop(error):
    raise error


LOADERS = READERS | {
    "records": read_turns,
    "corpus": lambda path: list(read_corpus(str(path), stop)),
    "passages": lambda path: list(read_passages(path)),
    "chats": lambda path: [read_conversation(text, place) for _, place, text in read_json_texts(path)],
    "items": lambda path: read_items(path, "udcg"),
    "qrels": read_qrels,
    "run": read_run,
}
WORDS = st.one_of(st.text(max_size=6), st.sampled_from(
    ["q", "0", "d", "1", "nan", "1e400", "9" * 5000, "-3", "1001", "query-id", "corpus-id", "score", "Q0",
     "\x00", "\x1c"]
))  # fmt: skip
TREC = st.lists(st.lists(WORDS, max_size=7).map(" ".join), max_size=4)
YAML = st.one_of(st.text(max_size=12), st.sampled_from(
    ["2001-99-99", "!!int x", "!!float x", "!!timestamp x", "!!bool x", "!!binary x", "!!python/object:os.system x",
     "&a [*a]", "{2024-01-01: 1}", "{[a]: b}", "? [1]\n: 2", "9" * 5000, "0x" + "f" * 5000, "1e999", ".nan", "<<: 1",
     "*x", "\ud800", "\x00", "{a: 1, a: 2}", "%YAML 9.9\n--- a", "--- a\n--- b", "null", "", "[{}]", "{a: {b: c}}"]
))  # fmt: skip


def records_like(record):
    """A list of copies of a record, with fields missing or replaced."""
    names = st.sampled_from(sorted(record))
    changes = st.dictionaries(names, VALUES, max_size=2)
    return st.lists(st.builds(
        lambda changed, missing: {key: value for key, value in (record | changed).items() if key not in missing},
        changes, st.sets(names, max_size=1),
    ), max_size=3)  # fmt: skip


def explore(check, examples, *strategies):
    """Call a function with random values, the same in each test run."""
    phases = (Phase.generate, Phase.shrink)
    options = settings(max_examples=examples, deadline=None, database=None, derandomize=True, phases=phases)
    options(given(*strategies)(check))()


def load(kind, path, content):
    """Load a file with this content; it may only raise InputError."""
    path.write_bytes(content)
    try:
        LOADERS[kind](path)
    except InputError as error:
        assert str(error)


def explore_loader(kind, folder, examples):
    suffixes = {"corpus": ["jsonl", "tsv", "jsonl.gz", "parquet"], "chats": ["jsonl", "json"]}.get(kind, ["json"])
    files = [folder / f"file.{suffix}" for suffix in suffixes]
    for content in CONTENTS:
        for path in files:
            load(kind, path, content)
    if kind in RECORDS:
        explore(
            lambda records, as_list, end, path: load(
                kind, path, (json.dumps(records) if as_list else "\n".join(map(json.dumps, records))).encode() + end
            ),
            examples, records_like(RECORDS[kind]), st.booleans(), st.binary(max_size=3), st.sampled_from(files),
        )  # fmt: skip
    else:
        explore(lambda rows: load(kind, files[0], "\n".join(rows).encode()), examples, TREC)


def explore_settings(folder, examples):
    names = [*(setting.name for setting in settings_of(Settings)), "dpo.x", "lora.a.b", "data.sets.a.train", "..", "x"]

    def check(name, value, in_file):
        words = [f"--{name}={value}"]
        try:
            if in_file:
                (folder / "x.yaml").write_bytes(f"{name}: {value}".encode(errors="surrogatepass"))
                words = ["--config", str(folder / "x.yaml")]
            load_yaml(value, "x: ")
            read_settings("", ["--run.dir", "x", *words])
        except InputError as error:
            assert str(error)

    explore(check, examples, st.sampled_from(names), YAML, st.booleans())


@pytest.mark.parametrize("kind", LOADERS)
def test_loaders_raise_only_input_errors(tmp_path, kind):
    explore_loader(kind, tmp_path, 25)


def test_settings_raise_only_input_errors(tmp_path):
    explore_settings(tmp_path, 60)


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOADERS)
def test_loaders_raise_only_input_errors_on_many_files(tmp_path, kind):
    explore_loader(kind, tmp_path, 1000)


@pytest.mark.slow
def test_settings_raise_only_input_errors_on_many_values(tmp_path):
    explore_settings(tmp_path, 2000)
