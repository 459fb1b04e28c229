"""The evaluation: models and adapters of the systems, the generator's own adapter, and unusable turns."""

import json

import pytest

from core.data_sources import data_sources
from core.errors import InputError
from core.model_spec import ModelSpec
from core.records import EvaluationRecord, GenerationInput, RewardInput, SystemResult, Turn
from core.stages import load_stage
from rewriter.conversations import load_turns
from rewriter.prompts import RewritePrompt
from rewriter.sampling import greedy_rewrites
from scoring.generator import Generator
from scoring.scorer import Scorer
from tests.conftest import settings_of, write_lines
from train.evaluation import select_systems
from train.pipeline import run_pipeline
from train.query_measures import measure_queries, measure_query

TEXTS = {"d0": "Tarn owls nest in old barns.", "d1": "Reed herons fish at dawn."}
TURNS = [
    {"id": "c_1", "history": [], "question": "Where do tarn owls nest?", "relevant": {"d0": 1}, "answers": ["barns"]},
    {
        "id": "c_2",
        "history": [
            {"role": "user", "content": "Do herons fish?"},
            {"role": "assistant", "content": "Reed herons do."},
        ],
        "question": "When do they fish?",
        "relevant": {"d1": 1},
    },
]


@pytest.fixture
def evaluate(random_llama, tmp_path):
    """A function that evaluates some systems, and returns the settings, the turns and the records."""
    files = ["--data.test", tmp_path / "turns.jsonl", "--data.corpus"]
    files.append(write_lines(tmp_path / "corpus.jsonl", ({"id": doc, "text": text} for doc, text in TEXTS.items())))
    limits = ["--rewriter.max_new_tokens", "8", "--generator.max_new_tokens", "6", "--retrieval.k", "1"]

    def run(*flags, turns=TURNS):
        write_lines(tmp_path / "turns.jsonl", turns)
        settings = settings_of(
            "--run.dir", tmp_path / "run", "--run.only", "evaluation", "--rewriter.model", random_llama, *files,
            *limits, *flags,
        )  # fmt: skip
        run_pipeline(settings)
        turns = load_turns(data_sources(settings.data, settings.run.path), "test")
        return settings, turns, list(load_stage(settings.run.path, "evaluation", EvaluationRecord))

    return run


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_generator_answers_with_its_own_adapter(evaluate, random_llama, adapters, dtype):
    flags = ["--evaluation.systems", "[original]", "--generator.model", random_llama, "--generator.dtype", dtype]
    settings, turns, records = evaluate(*flags, "--generator.adapter", adapters["first"])
    inputs = [
        GenerationInput.of(turn.history, turn.question, [TEXTS[record.systems["original"].hits[0].doc]])
        for turn, record in zip(turns, records, strict=True)
    ]
    answers = {}
    for adapter in (adapters["first"], None):
        generator = Generator.of(ModelSpec(str(random_llama), adapter, dtype).load(), settings.generator)
        answers[adapter] = [answer.answer for answer in generator.answers(inputs)]
    assert answers[None] != answers[adapters["first"]]
    assert [record.systems["original"].answer for record in records] == answers[adapters["first"]]


def test_the_untrained_rewriter_has_the_adapter_that_training_starts_from(evaluate, random_llama, adapters):
    flags = ["--evaluation.systems", "[base]", "--evaluation.answers", "false"]
    settings, turns, records = evaluate(*flags, "--rewriter.adapter", adapters["first"])
    queries = {
        adapter: greedy_rewrites(
            ModelSpec(str(random_llama), adapter).load(), turns.turns, settings.rewriter, RewritePrompt()
        )
        for adapter in (adapters["first"], None)
    }
    assert queries[None] != queries[adapters["first"]]
    assert [record.systems["base"].query for record in records] == queries[adapters["first"]]


def test_only_trained_systems_need_a_trained_stage(evaluate):
    _, _, records = evaluate("--evaluation.systems", "[original,history,base]", "--evaluation.answers", "false")
    assert all(list(record.systems) == ["original", "history", "base"] for record in records)
    with pytest.raises(InputError, match="the stage `round-1/dpo` is not complete in"):
        evaluate("--evaluation.systems", "[original,dpo]", "--evaluation.answers", "false")


def test_a_rewrite_is_recorded_where_something_else_is_searched(evaluate, tmp_path):
    flags = ["--evaluation.systems", "[original,base]", "--evaluation.answers", "false", "--rewriter.query", "joined"]
    _, turns, records = evaluate(*flags)
    for turn, record in zip(turns, records, strict=True):
        base = record.systems["base"]
        assert base.query == f"{turn.question} {turn.question} {base.rewrite}"
        assert record.systems["original"].rewrite is None
    rows = [json.loads(line) for line in (tmp_path / "run/evaluation/per_turn.jsonl").read_text().splitlines()]
    assert {(row["id"], row["system"]) for row in rows} == {(t.id, s) for t in turns for s in ("original", "base")}


def test_systems_that_can_be_evaluated():
    unlabelled, labelled = Turn("a", (), "q"), Turn("a", (), "q", relevant={"d": 1})

    def select(systems, turn, *flags, trained=()):
        settings = settings_of("--run.dir", "x", "--evaluation.systems", systems, *flags)
        return select_systems(settings, trained, [turn])

    for flags in (["--evaluation.answers", "false"], ["--scoring.reward", "udcg"]):
        with pytest.raises(InputError, match="have neither `relevant` nor `answers`: nothing can be measured"):
            select("[original]", unlabelled, *flags)
    with pytest.raises(InputError, match="nothing can be measured"):
        select("[original]", Turn("a", (), "q", relevant={"d": 0}), "--evaluation.answers", "false")
    assert select("[original]", unlabelled) == ("original",)  # `key_entropy` needs no label
    with pytest.raises(InputError, match="has no system left: 1 of 1 measured turns have no `rewrite`"):
        select("[reference]", labelled)
    trained = ("sft", "dpo-1", "dpo-2", "dpo")
    assert select("[sft,dpo,original]", labelled, trained=trained) == ("sft", "dpo-1", "dpo-2", "dpo", "original")


@pytest.mark.parametrize("answer", ["generated", "logged"])
def test_the_reward_of_turns_without_labels(evaluate, lm, tmp_path, answer):
    replies = {"c_1": "In old barns.", "e_1": "Fish."}
    turns = [
        {"id": name, "history": [], "question": question, "reply": replies[name]}
        for name, question in (("c_1", "Where do tarn owls nest?"), ("e_1", "When do reed herons fish?"))
    ]
    flags = ["--evaluation.systems", "[original]", "--scoring.answer", answer, "--evaluation.resamples", "10"]
    settings, turn_set, records = evaluate(*flags, turns=turns)
    scorer = Scorer(Generator.of(lm, settings.generator), settings.scoring)

    def reward(turn, text):
        item = RewardInput(GenerationInput.of((), turn.question, [text]), reply=turn.reply)
        return scorer.scores([item], ["key_entropy"])[0]["key_entropy"].value

    owls, herons = turn_set
    assert [record.systems["original"].reward for record in records] == pytest.approx(
        [reward(owls, TEXTS["d0"]), reward(herons, TEXTS["d1"])], abs=1e-4
    )
    assert [record.shuffled_reward for record in records] == pytest.approx(
        [reward(owls, TEXTS["d1"]), reward(herons, TEXTS["d0"])], abs=1e-4
    )
    metrics = json.loads((tmp_path / "run/evaluation/metrics.json").read_text())
    name = "key_entropy" if answer == "generated" else "key_entropy@logged"
    assert metrics["reward"] == name and name in metrics["systems"]["original"]
    assert metrics["systems"]["original"][name] == pytest.approx(
        sum(record.systems["original"].reward for record in records) / 2
    )
    assert metrics["queries"]["original"] == {
        "words": 5.0, "new_words": 0.0, "answer_words": 0.0, "repeated_words": 0.0, "same_as_question": 1.0,
        "distinct": 1.0,
    }  # fmt: skip


def test_query_measures_by_hand():
    turn = Turn("a", ({"role": "user", "content": "Who made Talpa?"},), "Where was she born?")
    result = SystemResult("x", rewrite="Where was Ann Lee born, born in Ghent?", answer="She was born in Ghent.")
    measures = measure_query(turn, result)
    assert measures == pytest.approx(
        # where was ann lee born born in ghent: ann, lee, in and ghent are new, two of them are in the answer
        {"words": 8, "new_words": 4 / 8, "answer_words": 2 / 8, "repeated_words": 1 / 8, "same_as_question": 0}
    )
    twice = measure_queries([turn, turn], [SystemResult("where was she born"), SystemResult("Where was she born?")])
    assert twice["same_as_question"] == 1 and twice["distinct"] == 0.5
