"""Several data sets, each searched in its own collection, and conversations that are held out of training."""

import json
import re
import shutil
from pathlib import Path

import pytest

from core.cli import read_settings
from core.data_settings import DataFiles
from core.data_sources import data_sources
from core.errors import InputError
from core.json_records import read_records
from core.records import Candidate, Passage, TurnRecord
from core.stages import Stage
from retrieval.collection import open_collections
from rewriter.conversations import load_turns
from scoring.validity import main as validity
from tests.conftest import call, settings_of, write_lines
from train.aggregate_seeds import main as aggregate_seeds
from train.evaluation import check_test_turns
from train.pipeline import Run, make_stage, run_pipeline
from train.pool import make_pools

# Both collections have a d0 and a d1, with different content; d2 is only in one of them.
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
RETRIEVAL_ONLY = [
    "--run.only", "evaluation", "--evaluation.answers", "false",
    "--evaluation.systems", "[original,history,reference]",
]  # fmt: skip


def turn(name, conversation, question="Who?", **more):
    return {"id": name, "conversation": conversation, "history": [], "question": question} | more


def sources_of(*flags):
    settings = settings_of(*flags)
    return data_sources(settings.data, settings.run.path)


def ids_of(flags, split, limit=None):
    return [turn.id for turn in load_turns(sources_of(*flags), split, limit)]


def conversations(turns):
    return list(dict.fromkeys(turn.group for turn in turns))


@pytest.fixture
def two_sets(tmp_path):
    """Two sets of two conversations with one turn each, as `data.sets`."""
    sets = {}
    for name, documents in CORPORA.items():
        turns = [
            turn(f"{name}-{conversation}", conversation, question, relevant={doc: 1}, rewrite=query, answers=[doc])
            for conversation, question, doc, query in ASKED[name]
        ]
        sets[name] = {
            "train": write_lines(tmp_path / name / "turns.jsonl", turns),
            "corpus": write_lines(
                tmp_path / name / "corpus.jsonl", ({"id": d, "text": t} for d, t in documents.items())
            ),
        }
    return sets


@pytest.fixture
def flags(two_sets, tmp_path):
    """The command line of a run with these sets."""
    return ["--run.dir", tmp_path / "run", "--data.sets", json.dumps(two_sets)]


# ------------------------------------------------------------------ held-out conversations


def test_the_real_sets_are_split_by_conversation(shared_data):
    sets = {name: {"train": str(shared_data / f"mtrag_{name}/turns.jsonl")} for name in ("clapnq", "fiqa", "govt")}
    shares = ["--data.holdout", "0.3333", "--data.development_share", "0.2"]
    sources = sources_of("--data.sets", json.dumps(sets), *shares)
    parts = {split: load_turns(sources, split) for split in ("train", "development", "test")}
    counts = {
        split: [len(conversations(turn for turn in turns if turn.dataset == name)) for name in sets]
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
    path = write_lines(tmp_path / "turns.jsonl", (turn(f"t{i}", str(i)) for i in range(number)))
    flags = ["--data.train", path, "--data.holdout", share]
    assert ids_of(flags, "test") == [f"t{i}" for i in range(number - held_out, number)]
    assert len(ids_of(flags, "train")) == number - held_out


def test_a_conversation_is_never_split(tmp_path):
    order = ["a", "b", "a", "c", "d", "b", "a"]  # by first turns: a, b, c, d
    path = write_lines(tmp_path / "turns.jsonl", (turn(f"{name}{i}", name) for i, name in enumerate(order)))
    flags = ["--data.train", path, "--data.holdout", "0.25", "--data.development_share", "0.3"]
    assert ids_of(flags, "train") == ["a0", "b1", "a2", "b5", "a6"]
    assert ids_of(flags, "development") == ["c3"]
    assert ids_of(flags, "test") == ["d4"]


def test_a_set_with_a_test_file_keeps_it(tmp_path):
    files = {
        name: write_lines(tmp_path / f"{name}.jsonl", (turn(f"{name}{i}", f"{i}") for i in range(4))) for name in "abc"
    }
    sets = {"own": {"train": files["a"], "test": files["b"]}, "shared": {"train": files["c"]}}
    flags = ["--data.sets", json.dumps(sets), "--data.holdout", "0.5"]
    assert ids_of(flags, "train") == ["a0", "a1", "a2", "a3", "c0", "c1"]
    assert ids_of(flags, "test") == ["b0", "b1", "b2", "b3", "c2", "c3"]


def test_a_set_may_be_for_testing_alone(tmp_path):
    files = {name: write_lines(tmp_path / f"{name}.jsonl", [turn(name, "1")]) for name in "ab"}
    flags = ["--data.sets", json.dumps({"a": {"train": files["a"]}, "b": {"test": files["b"]}})]
    assert ids_of(flags, "train") == ["a"]
    assert ids_of(flags, "test") == ["b"]


def test_conversations_of_different_sets_are_not_merged(flags):
    turns = load_turns(sources_of(*flags), "train")
    assert [(turn.dataset, turn.conversation) for turn in turns] == [
        ("birds", "1"), ("birds", "2"), ("tools", "1"), ("tools", "2"),
    ]  # fmt: skip
    assert len(conversations(turns)) == 4


def test_limit_takes_the_first_turns_of_each_set(flags):
    assert ids_of(flags, "train", 1) == ["birds-1", "tools-1"]


# ------------------------------------------------------------------ stages


@pytest.fixture
def run_of(flags):
    """A function that returns a run with candidates for every turn."""

    def with_candidates(*more):
        settings = settings_of(*flags, *more)
        run = Run(settings, data_sources(settings.data, settings.run.path))
        inputs = {"turns": run.train_turns.fingerprint}
        stage = Stage(run.path, "round-1/candidates", {}, inputs, TurnRecord)
        stage.write(
            TurnRecord(
                f"{name}-{conversation}",
                name,
                tuple(Candidate(text, text, -1.0, 2) for text in (query, question, "northern adze")),
            )
            for name, asked in ASKED.items()
            for conversation, question, _, query in asked
        )
        stage.finish({"total": 4})
        return run

    return with_candidates


def test_every_turn_is_ranked_in_its_own_collection(run_of):
    stage = make_stage(run_of("--retrieval.engine", "rank_bm25"), "round-1/rankings")
    documents = {
        record.id: [[hit.doc for hit in candidate.documents] for candidate in record.candidates] for record in stage
    }
    assert documents == {
        "birds-1": [["d0"], ["d0"], ["d2"]],
        "birds-2": [["d1"], [], ["d2"]],
        "tools-1": [["d0"], ["d0"], ["d1"]],
        "tools-2": [["d1"], ["d1"], ["d1"]],  # "barns" is in d0 and d2 of the other collection
    }
    assert stage.plan["settings"]["engine"] == {"birds": "rank_bm25", "tools": "rank_bm25"}
    assert stage.plan["inputs"]["corpus"].keys() == CORPORA.keys()


def test_every_turn_is_scored_with_documents_of_its_own_collection(run_of, random_llama):
    run = run_of("--rewriter.model", random_llama, "--generator.max_new_tokens", "4", "--pairs.drop_fraction", "0")
    make_stage(run, "round-1/rankings")
    scores = {
        (record.id, *(hit.doc for hit in candidate.documents)): candidate.score
        for record in make_stage(run, "round-1/scores")
        for candidate in record.candidates
    }
    assert scores["birds-1", "d0"] is not None and scores["birds-1", "d2"] is not None  # d2 is only in one set
    assert scores["tools-1", "d0"] is not None and scores["birds-2",] is None
    assert {pair.id for pair in make_stage(run, "round-1/pairs")} == {"birds-1", "birds-2", "tools-1"}


def test_another_collection_is_named(run_of, tmp_path):
    make_stage(run_of(), "round-1/rankings")
    write_lines(tmp_path / "tools/corpus.jsonl", [{"id": "d0", "text": "froe"}])
    with pytest.raises(InputError, match="other settings: `inputs.corpus.tools` was '\\w+', is '\\w+'. Use"):
        make_stage(run_of(), "round-1/rankings")


def test_another_share_is_named_and_the_settings_of_the_run_are_kept(flags, tmp_path):
    run_pipeline(settings_of(*flags, *RETRIEVAL_ONLY, "--data.holdout", "0.5"))
    run_file = next(tmp_path.rglob("run.json"))
    settings = run_file.read_text()
    expected = "evaluation was created with other settings: `inputs.turns.holdout` was 0.5, is 0.4."
    with pytest.raises(InputError, match=re.escape(expected)):
        run_pipeline(settings_of(*flags, *RETRIEVAL_ONLY, "--data.holdout", "0.4"))
    assert run_file.read_text() == settings


# ------------------------------------------------------------------ evaluation


@pytest.fixture
def evaluated(flags, tmp_path):
    """The run folder of an evaluation of the second conversation of both sets."""
    run_pipeline(settings_of(*flags, *RETRIEVAL_ONLY, "--data.holdout", "0.5"))
    return tmp_path / "run"


def test_results_are_split_by_set(evaluated):
    metrics = json.loads((evaluated / "evaluation/metrics.json").read_text())
    assert metrics["turns"] == {"evaluated": 2, "total": 2, "answered": 2} and metrics["evaluated_on"] == "test"
    mrr = {
        name: {system: part[system]["MRR@10"] for system in metrics["systems"]}
        for name, part in metrics["by_dataset"].items()
    }
    assert mrr == {
        "birds": {"original": 0.0, "history": 0.0, "reference": 1.0},
        "tools": {"original": 1.0, "history": 1.0, "reference": 1.0},
    }
    assert metrics["systems"]["original"]["nDCG@3"] == 0.5
    assert metrics["by_dataset"]["tools"]["turns"] == 1 and metrics["by_dataset"]["tools"]["original"]["nDCG@3"] == 1.0
    turns = [json.loads(line) for line in (evaluated / "evaluation/per_turn.jsonl").read_text().splitlines()]
    assert {(turn["id"], turn["dataset"], turn["conversation"]) for turn in turns} == {
        ("birds-2", "birds", "birds/2"), ("tools-2", "tools", "tools/2"),
    }  # fmt: skip
    table = (evaluated / "evaluation/table.md").read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert ["birds", "1", "original", "0.000"] in [row[:4] for row in rows]


def test_development_turns_are_named_so(flags, tmp_path):
    shares = ["--data.development_share", "0.5", "--data.evaluate_on", "development"]
    run_pipeline(settings_of(*flags, *RETRIEVAL_ONLY, *shares))
    folder = tmp_path / "run/evaluation"
    assert json.loads((folder / "metrics.json").read_text())["evaluated_on"] == "development"
    assert "Turns: *development*" in (folder / "table.md").read_text()


def test_means_of_several_runs_by_set(evaluated, tmp_path):
    shutil.copytree(evaluated, tmp_path / "again")
    rows = [json.loads(line) for line in (evaluated / "evaluation/per_turn.jsonl").open()]
    for row in rows:
        row["system"] = {"original": "base", "reference": "dpo"}.get(row["system"], row["system"])
    for folder in (evaluated, tmp_path / "again"):
        write_lines(folder / "evaluation/per_turn.jsonl", rows)
    words = [evaluated, tmp_path / "again", "--resamples", "20"]
    output = call(aggregate_seeds, *words, "--measures", "nDCG@3", "MRR@10")
    whole, birds, tools = re.split(r"\nbirds: 1 turns\n|\ntools: 1 turns\n", output)
    assert "mean of 2 runs, 2 turns" in whole and cells("system nDCG@3 MRR@10") in cells(whole)
    assert cells("base 0.500 0.500") in cells(whole) and cells("dpo - base MRR@10 +0.500") in cells(whole)
    assert cells("base 0.000 0.000") in cells(birds) and cells("dpo - base MRR@10 +1.000") in cells(birds)
    assert cells("base 1.000 1.000") in cells(tools) and cells("dpo - base MRR@10 +0.000") in cells(tools)
    assert "got 'nDCG@4'; did you mean `nDCG@3`?" in call(aggregate_seeds, *words, "--measures", "nDCG@4", ok=False)


def cells(table):
    """The words of a table, without the separators between its cells."""
    return " ".join(table.replace("|", " ").split())


def test_relevant_documents_are_looked_up_in_the_own_collection(two_sets, tmp_path):
    turns = [turn("x", "1", relevant={"d2": 1}, rewrite="Who?")]  # d2 is in the other collection
    two_sets["tools"]["test"] = write_lines(tmp_path / "test.jsonl", turns)
    sources = sources_of("--data.sets", json.dumps(two_sets))
    expected = "no `relevant` document of the test turns is in the collection of `data.sets.tools`; .* `d2`"
    with pytest.raises(InputError, match=expected):
        check_test_turns(load_turns(sources, "test"), open_collections(sources), settings_of("--run.dir", "x"))


# ------------------------------------------------------------------ pools and validity


def test_every_set_has_a_pool_of_its_own(flags, tmp_path):
    flags += ["--data.holdout", "0.5", "--data.pool", "1"]
    pools = make_pools(sources_of(*flags), settings_of(*flags))
    assert [pool.corpus for pool in pools] == [str(tmp_path / f"run/data/pool-{name}.jsonl") for name in CORPORA]
    # Of each set both turns, the one for training and the one for testing; no question or rewrite finds birds' d2.
    for pool in pools:
        assert [passage.id for _, passage in read_records(Passage, Path(pool.corpus))] == ["d0", "d1"]


def test_validity_reads_every_set(two_sets, random_llama, tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text(f"run:\n  dir: x\ndata:\n  sets: {json.dumps(two_sets)}\n")
    words = ["--config", config, "--generator.model", random_llama, "--generator.max_new_tokens", "4"]
    words += ["--rewards", "reciprocal_rank", "--output"]
    call(validity, *words, tmp_path / "out")
    assert json.loads((tmp_path / "out/validity.json").read_text())["questions"] == 4
    call(validity, *words, tmp_path / "held-out", "--data.holdout", "0.5")  # only training turns
    assert json.loads((tmp_path / "held-out/validity.json").read_text())["questions"] == 2


# ------------------------------------------------------------------ settings and errors


def test_a_flag_changes_one_entry(two_sets, tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text(f"run:\n  dir: x\ndata:\n  sets: {json.dumps(two_sets)}\n")
    words = ["--config", str(config), "--data.sets.tools.corpus", "other", "--data.sets.birds.test=t"]
    sets = read_settings("", words).data.sets
    assert sets == {
        "birds": DataFiles(**two_sets["birds"], test="t"),
        "tools": DataFiles(**two_sets["tools"] | {"corpus": "other"}),
    }


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--data.sets", "{a: {trian: x}}"], "unknown setting `data.sets.a.trian`; did you mean `data.sets.a.train`?"),
        (["--data.sets.a.trian", "x"], "unknown setting `data.sets.a.trian`; did you mean `data.sets.a.train`?"),
        (["--data.sets.a.train"], "argument --data.sets.a.train: expected one argument"),
        (
            ["--data.sets", "{a: x}"],
            "`data.sets.a` must be a mapping with train, test, qrels, train_qrels, corpus, got 'x'.",
        ),
        (["--data.sets", "{a: {train: [x]}}"], "`data.sets.a.train` must be a string, or null, got ['x']."),
        (["--data.sets", "{a/b: {train: x}}"], "`data.sets` has the name 'a/b'; use letters"),
        (["--data.sets", "[a]"], "`data.sets` must be a mapping, each value a mapping with train,"),
        (["--data.sets", "{a: {train: x}}", "--data.train", "x"], "`data.train` and `data.sets` are both set"),
        (["--data.sets", "{a: {train: x}}", "--data.format", "tiny_world"], "`data.sets` needs files"),
        (["--data.holdout", "1"], "`data.holdout` must be a number >= 0 and < 1, got 1."),
        (
            ["--data.holdout", "0.3", "--data.sets", "{a: {train: x, qrels: y}}"],
            "`data.sets.a.qrels` is for the turns of `data.sets.a.test`, which is not set",
        ),
        (["--data.development_share", "1"], "`data.development_share` must be a number >= 0 and < 1, got 1."),
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


def test_mistakes_in_files_are_named(two_sets):
    def load(split="train", *more):
        return ids_of(["--data.sets", json.dumps(two_sets), *more], split)

    with pytest.raises(InputError, match="no set of `data.sets` has a `test` file; set it in one of them, or hold"):
        load("test")
    with pytest.raises(InputError, match="`data.sets.tools.train`: no file at gone.jsonl"):
        load("train", "--data.sets.tools.train", "gone.jsonl")
    with pytest.raises(InputError, match="`data.sets.birds.train` has no conversation left for `train`; lower"):
        load("train", "--data.holdout", "0.5", "--data.development_share", "0.5")
    two_sets["tools"]["train"] = two_sets["birds"]["train"]
    with pytest.raises(InputError, match="`birds-1` is in both `data.sets.birds.train` and `data.sets.tools.train`"):
        load()
