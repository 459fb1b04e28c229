"""Several data sets, each searched in its own collection, and conversations that are held out of training."""

import json
import re
import shutil
import sys

import pytest
from core.inputs import pool_file, same_data
from scoring.pairs import make_pairs

from core.artifacts import Stage, completed
from core.cli import read_settings
from core.errors import InputError
from retrieval.corpus import read_corpus
from retrieval.rankings import make_rankings
from rewriter.conversations import turns_hash, turns_of
from scoring.scores import make_scores
from tests.conftest import finish, lines
from train.evaluation import check_test
from train.pool import make_pool

# Both collections have a d0 and a d1, about other things; d2 is in one of them alone.
CORPORA = {
    "birds": {
        "d0": "Tarn owls nest in old barns.",
        "d1": "Reed herons fish at dawn.",
        "d2": "Barns of the northern hills.",
    },
    "tools": {"d0": "A froe splits shingles.", "d1": "An adze trims beams in old barns."},
}
# set -> question, relevant document and a candidate that finds it. Conversations have the same names in both sets.
ASKED = {
    "birds": [("1", "Where do they nest?", "d0", "tarn owls nest"), ("2", "Who is it?", "d1", "reed herons dawn")],
    "tools": [("1", "What splits it?", "d0", "froe shingles"), ("2", "In barns?", "d1", "adze beams barns")],
}
RETRIEVAL_ONLY = ["--evaluation.systems", "[original,history,reference]", "--evaluation.answers", "false"]


def write(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def turn(name, conversation, question="Who?", **more):
    return {"id": name, "conversation": conversation, "history": [], "question": question} | more


def flags_of(tmp_path, sets, *more):
    """A command line with these sets: name -> its files."""
    return ["--run.dir", str(tmp_path / "run"), "--data.sets", json.dumps(sets), *map(str, more)]


@pytest.fixture
def two_sets(tmp_path):
    """Two sets of two conversations with one turn each, as `data.sets`."""
    made = {}
    for name, documents in CORPORA.items():
        turns = [
            turn(f"{name}-{conversation}", conversation, question, relevant={doc: 1}, rewrite=query, answers=[doc])
            for conversation, question, doc, query in ASKED[name]
        ]
        made[name] = {
            "train": write(tmp_path / name / "turns.jsonl", turns),
            "corpus": write(tmp_path / name / "corpus.jsonl", ({"id": d, "text": t} for d, t in documents.items())),
        }
    return made


# ------------------------------------------------------------------ held-out conversations


def conversations(turns):
    return list(dict.fromkeys(one.group for one in turns))


def test_the_real_sets_are_split_by_conversation(shared_data):
    sets = {name: {"train": str(shared_data / f"mtrag_{name}/turns.jsonl")} for name in ("clapnq", "fiqa", "govt")}
    shares = ["--data.test_share", "0.3333", "--data.development_share", "0.2"]
    settings = read_settings("", ["--run.dir", "x", "--data.sets", json.dumps(sets), *shares])
    parts = {split: turns_of(settings, split) for split in ("train", "development", "test")}
    counts = {
        split: [len(conversations(t for t in turns if t.dataset == name)) for name in sets]
        for split, turns in parts.items()
    }
    assert counts == {"train": [15, 14, 14], "development": [4, 4, 4], "test": [10, 9, 10]}
    assert len(parts["test"]) == 204 and sum(map(len, parts.values())) == 208 + 180 + 201
    groups = [set(conversations(turns)) for turns in parts.values()]
    assert sum(map(len, groups)) == len(set.union(*groups)) == 29 + 27 + 28


@pytest.mark.parametrize(
    ("number", "share", "held_out"),
    [
        (27, "0.3333", 9), (27, "0.33333333333333331", 9), (27, "0.3334", 9), (28, "0.3333", 10), (29, "0.3333", 10),
        (10, "0.3", 3), (10, "0.31", 4), (100, "0.07", 7), (5, "0.001", 1),
    ],
)  # fmt: skip
def test_the_number_of_conversations_is_rounded_up(tmp_path, number, share, held_out):
    path = write(tmp_path / "turns.jsonl", (turn(f"t{i}", str(i)) for i in range(number)))
    settings = read_settings("", ["--run.dir", "x", "--data.train", path, "--data.test_share", share])
    assert [one.id for one in turns_of(settings, "test")] == [f"t{i}" for i in range(number - held_out, number)]
    assert len(turns_of(settings, "train")) == number - held_out


def test_a_conversation_is_never_split(tmp_path):
    order = ["a", "b", "a", "c", "d", "b", "a"]  # by first turns: a, b, c, d
    path = write(tmp_path / "turns.jsonl", (turn(f"{name}{i}", name) for i, name in enumerate(order)))
    shares = ["--data.test_share", "0.25", "--data.development_share", "0.3"]
    settings = read_settings("", ["--run.dir", "x", "--data.train", path, *shares])
    assert [one.id for one in turns_of(settings, "train")] == ["a0", "b1", "a2", "b5", "a6"]
    assert [one.id for one in turns_of(settings, "development")] == ["c3"]
    assert [one.id for one in turns_of(settings, "test")] == ["d4"]


def test_a_set_with_a_test_file_keeps_it(tmp_path):
    files = {name: write(tmp_path / f"{name}.jsonl", (turn(f"{name}{i}", f"{i}") for i in range(4))) for name in "abc"}
    sets = {"own": {"train": files["a"], "test": files["b"]}, "shared": {"train": files["c"]}}
    settings = read_settings("", flags_of(tmp_path, sets, "--data.test_share", "0.5"))
    assert [one.id for one in turns_of(settings, "train")] == ["a0", "a1", "a2", "a3", "c0", "c1"]
    assert [one.id for one in turns_of(settings, "test")] == ["b0", "b1", "b2", "b3", "c2", "c3"]


def test_a_set_may_be_for_testing_alone(tmp_path):
    files = {name: write(tmp_path / f"{name}.jsonl", [turn(name, "1")]) for name in "ab"}
    settings = read_settings("", flags_of(tmp_path, {"a": {"train": files["a"]}, "b": {"test": files["b"]}}))
    assert [one.id for one in turns_of(settings, "train")] == ["a"]
    assert [one.id for one in turns_of(settings, "test")] == ["b"]


def test_conversations_of_different_sets_are_not_merged(two_sets, tmp_path):
    turns = turns_of(read_settings("", flags_of(tmp_path, two_sets)), "train")
    assert [(one.dataset, one.conversation) for one in turns] == [
        ("birds", "1"), ("birds", "2"), ("tools", "1"), ("tools", "2"),
    ]  # fmt: skip
    assert len(conversations(turns)) == 4


def test_limit_takes_the_first_turns_of_each_set(two_sets, tmp_path):
    settings = read_settings("", flags_of(tmp_path, two_sets))
    assert [one.id for one in turns_of(settings, "train", 1)] == ["birds-1", "tools-1"]


# ------------------------------------------------------------------ stages


@pytest.fixture
def candidates(two_sets, tmp_path):
    """A run folder with candidates of every turn, as flags."""

    def with_candidates(*more):
        flags = flags_of(tmp_path, two_sets, *more)
        train = turns_hash(read_settings("", flags), "train")
        stage = Stage(tmp_path / "run/candidates", {"limit": None}, {"train": train})
        for name, asked in ASKED.items():
            for conversation, question, _, query in asked:
                found = [
                    {"text": text, "query": text, "logprob": -1.0, "tokens": 2}
                    for text in (query, question, "northern adze")
                ]
                stage.append([{"id": f"{name}-{conversation}", "dataset": name, "candidates": found}])
        stage.finish({})
        return flags

    return with_candidates


def test_every_turn_is_ranked_in_its_own_collection(candidates):
    settings = read_settings("", candidates("--rewriter.model", "m", "--retrieval.engine", "rank_bm25"))
    found = {record["id"]: record["rankings"] for record in lines(make_rankings(settings).folder)}
    documents = {name: [[doc for doc, _ in ranking] for ranking in rankings] for name, rankings in found.items()}
    assert documents == {
        "birds-1": [["d0"], ["d0"], ["d2"]],
        "birds-2": [["d1"], [], ["d2"]],
        "tools-1": [["d0"], ["d0"], ["d1"]],
        "tools-2": [["d1"], ["d1"], ["d1"]],  # "barns" is in d0 and d2 of the other collection
    }
    plan = completed(settings.run_dir / "rankings").plan
    assert plan["settings"]["engine"] == {"birds": "rank_bm25", "tools": "rank_bm25"}
    assert plan["inputs"]["corpus"].keys() == CORPORA.keys()


def test_every_turn_is_scored_with_documents_of_its_own_collection(candidates, random_llama):
    flags = candidates("--rewriter.model", random_llama, "--generator.max_new_tokens", "4")
    settings = read_settings("", [*flags, "--pairs.drop_fraction", "0"])
    make_rankings(settings)
    values = {}
    for record in lines(make_scores(settings).folder):
        for scored in record["lists"]:
            values[record["id"], *scored["documents"]] = scored["value"]
    assert values["birds-1", "d0"] is not None and values["birds-1", "d2"] is not None  # d2 is in one collection alone
    assert values["tools-1", "d0"] is not None
    assert {pair["id"] for pair in lines(make_pairs(settings).folder)} == {"birds-1", "birds-2", "tools-1"}


def test_another_collection_is_named(candidates, tmp_path):
    flags = candidates("--rewriter.model", "m")
    make_rankings(read_settings("", flags))
    (tmp_path / "tools/corpus.jsonl").write_text('{"id": "d0", "text": "froe"}\n')
    with pytest.raises(InputError, match="made with other settings: `inputs.corpus.tools` was '\\w+', is '\\w+'. Use"):
        make_rankings(read_settings("", flags))


def test_another_share_is_named(two_sets, tmp_path):
    flags = flags_of(tmp_path, two_sets, *RETRIEVAL_ONLY)
    command = [sys.executable, "-m", "train.evaluation", *flags, "--data.test_share"]
    finish([*command, "0.5"])
    said = finish([*command, "0.4"], ok=False)
    assert "evaluation was made with other settings: `inputs.test.test_share` was 0.5, is 0.4." in said


# ------------------------------------------------------------------ evaluation


@pytest.fixture
def evaluated(two_sets, tmp_path):
    """The run folder of an evaluation of the second conversation of both sets, and what the command said."""
    words = flags_of(tmp_path, two_sets, *RETRIEVAL_ONLY, "--data.test_share", "0.5")
    said = finish([sys.executable, "-m", "train.evaluation", *words])
    return tmp_path / "run", said


def test_results_are_split_by_set(evaluated):
    run, said = evaluated
    made = json.loads((run / "evaluation/metrics.json").read_text())
    assert made["turns"] == {"evaluated": 2, "total": 2, "answered": 2} and made["evaluated_on"] == "test"
    mrr = {name: {s: part[s]["MRR@10"] for s in made["systems"]} for name, part in made["by_dataset"].items()}
    assert mrr == {
        "birds": {"original": 0.0, "history": 0.0, "reference": 1.0},
        "tools": {"original": 1.0, "history": 1.0, "reference": 1.0},
    }
    assert made["systems"]["original"]["nDCG@3"] == 0.5
    assert made["by_dataset"]["tools"]["turns"] == 1 and made["by_dataset"]["tools"]["original"]["nDCG@3"] == 1.0
    turns = [json.loads(line) for line in (run / "evaluation/per_turn.jsonl").read_text().splitlines()]
    assert {(one["id"], one["dataset"], one["conversation"]) for one in turns} == {
        ("birds-2", "birds", "birds/2"), ("tools-2", "tools", "tools/2"),
    }  # fmt: skip
    table = (run / "evaluation/table.md").read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert ["birds", "1", "original", "0.000"] in [row[:4] for row in rows] and table in said


def test_development_turns_are_named_so(two_sets, tmp_path):
    shares = ["--data.development_share", "0.5", "--data.evaluate_on", "development"]
    finish([sys.executable, "-m", "train.evaluation", *flags_of(tmp_path, two_sets, *RETRIEVAL_ONLY, *shares)])
    folder = tmp_path / "run/evaluation"
    assert json.loads((folder / "metrics.json").read_text())["evaluated_on"] == "development"
    assert "Turns: *development*" in (folder / "table.md").read_text()


def test_means_of_several_runs_by_set(evaluated, tmp_path):
    run, _ = evaluated
    shutil.copytree(run, tmp_path / "again")
    for line in (changed := [json.loads(line) for line in (run / "evaluation/per_turn.jsonl").open()]):
        line["system"] = {"original": "base", "reference": "dpo"}.get(line["system"], line["system"])
    for folder in (run, tmp_path / "again"):
        write(folder / "evaluation/per_turn.jsonl", changed)
    command = [sys.executable, "-m", "train.pooled", run, tmp_path / "again", "--resamples", "20"]
    said = finish([*command, "--measures", "nDCG@3", "MRR@10"])
    whole, birds, tools = re.split(r"\nbirds: 1 turns\n|\ntools: 1 turns\n", said)
    assert "mean of 2 runs, 2 turns" in whole and "| system  | nDCG@3 | MRR@10 |" in whole
    assert "| base    | 0.500  | 0.500  |" in whole and "| dpo - base | MRR@10 | +0.500 " in whole
    assert "| base    | 0.000  | 0.000  |" in birds and "| dpo - base | MRR@10 | +1.000 " in birds
    assert "| base    | 1.000  | 1.000  |" in tools and "| dpo - base | MRR@10 | +0.000 " in tools
    assert "invalid choice: 'nDCG@4'" in finish([*command, "--measures", "nDCG@4"], ok=False)


def test_relevant_documents_are_looked_up_in_the_own_collection(two_sets, tmp_path):
    turns = [turn("x", "1", relevant={"d2": 1}, rewrite="Who?")]  # d2 is in the other collection
    two_sets["tools"]["test"] = write(tmp_path / "test.jsonl", turns)
    with pytest.raises(InputError, match="no `relevant` document of the test turns .* of `data.sets.tools`; .* `d2`"):
        check_test(read_settings("", flags_of(tmp_path, two_sets, *RETRIEVAL_ONLY)))


# ------------------------------------------------------------------ pools and validity


def documents_of(path):
    return [passage.id for _, passage in read_corpus(str(path))]


def test_every_set_has_a_pool_of_its_own(two_sets, tmp_path):
    shares = ["--data.test_share", "0.5", "--data.pool", "1"]
    settings = read_settings("", flags_of(tmp_path, two_sets, *shares))
    make_pool(settings)
    # Of each set both turns, the one for training and the one for testing; no question or rewrite finds birds' d2.
    assert documents_of(pool_file(settings, "birds")) == ["d0", "d1"]
    assert documents_of(pool_file(settings, "tools")) == ["d0", "d1"]
    data = same_data(settings)
    assert data.pool == 0 and data.sets["tools"]["corpus"] == str(pool_file(settings, "tools"))
    assert data.sets["tools"]["train"] == two_sets["tools"]["train"]


def test_validity_reads_every_set(two_sets, random_llama, tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text(f"run:\n  dir: x\ndata:\n  sets: {json.dumps(two_sets)}\n")
    words = ["--config", config, "--generator.model", random_llama, "--generator.max_new_tokens", "4"]
    command = [sys.executable, "-m", "scoring.validity", *words, "--rewards", "reciprocal_rank", "--output"]
    finish([*command, tmp_path / "out"])
    assert json.loads((tmp_path / "out/validity.json").read_text())["questions"] == 4
    finish([*command, tmp_path / "held-out", "--data.test_share", "0.5"])  # training turns alone
    assert json.loads((tmp_path / "held-out/validity.json").read_text())["questions"] == 2


# ------------------------------------------------------------------ settings and errors


def test_a_flag_changes_one_entry(two_sets, tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text(f"run:\n  dir: x\ndata:\n  sets: {json.dumps(two_sets)}\n")
    words = ["--config", str(config), "--data.sets.tools.corpus", "other", "--data.sets.birds.test=t"]
    sets = read_settings("", words).data.sets
    assert sets == {"birds": two_sets["birds"] | {"test": "t"}, "tools": two_sets["tools"] | {"corpus": "other"}}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--data.sets", "{a: {trian: x}}"], "`data.sets.a` has `trian`; did you mean `train`?"),
        (["--data.sets.a.trian", "x"], "`data.sets.a` has `trian`; did you mean `train`?"),
        (["--data.sets.a.train"], "`--data.sets.a.train` needs a value."),
        (["--data.sets", "{a: x}"], "`data.sets.a` must hold files, such as {train: FILE, corpus: FILE}; got 'x'."),
        (["--data.sets", "{a: {train: [x]}}"], "`data.sets.a.train` must be a text or null, got ['x']."),
        (["--data.sets", "{a/b: {train: x}}"], "`data.sets` has the name 'a/b'; use letters"),
        (["--data.sets", "[a]"], "`data.sets` must be a mapping, got ['a']."),
        (["--data.sets", "{a: {train: x}}", "--data.train", "x"], "`data.train` and `data.sets` are both set"),
        (["--data.sets", "{a: {train: x}}", "--data.format", "tiny_world"], "`data.sets` needs files"),
        (["--data.test_share", "1"], "`data.test_share` must be between 0 and 1, got 1.0"),
        (["--data.test_share", "0.3", "--data.test", "x"], "but there is a `test` file; leave one of the two out"),
        (["--data.test_share", "0.3", "--data.format", "tiny_world"], "but there is a `test` file"),
        (
            ["--data.test_share", "0.3", "--data.sets", "{a: {train: x, qrels: y}}"],
            "`data.sets.a.qrels` belongs to `data.sets.a.test`, which is not set",
        ),
        (["--data.development_share", "1"], "`data.development_share` must be at least 0 and below 1, got 1.0."),
        (["--data.evaluate_on", "development"], "needs `data.development_share`"),
        (
            ["--data.sets", "{a: {}, b: {}}", "--retrieval.engine", "lucene", "--retrieval.prebuilt", "i"],
            "`retrieval.prebuilt` names one index, but `data.sets` has 2 collections",
        ),
    ],
)
def test_mistakes_in_settings_are_named(flags, expected):
    with pytest.raises(InputError, match=re.escape(expected)):
        read_settings("", ["--run.dir", "x", *flags])


def test_mistakes_in_files_are_named(two_sets, tmp_path):
    def turns(split="train", *more):
        return turns_of(read_settings("", flags_of(tmp_path, two_sets, *more)), split)

    with pytest.raises(InputError, match="no set of `data.sets` has a `test` file; name it in one of them or hold"):
        turns("test")
    with pytest.raises(InputError, match="`data.sets.tools.train`: no file at gone.jsonl"):
        turns("train", "--data.sets.tools.train", "gone.jsonl")
    with pytest.raises(InputError, match="`data.sets.birds.train` has no conversation left for `train`; lower"):
        turns("train", "--data.test_share", "0.5", "--data.development_share", "0.5")
    two_sets["tools"]["train"] = two_sets["birds"]["train"]
    with pytest.raises(InputError, match="`birds-1` is in both `data.sets.birds.train` and `data.sets.tools.train`"):
        turns()
