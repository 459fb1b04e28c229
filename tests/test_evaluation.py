"""The evaluation: each system's model and adapter, the generator's own adapter, and what cannot be measured."""

import json

import pytest

from core.data_sources import data_sources
from core.errors import InputError
from core.model_spec import ModelSpec
from core.records import EvaluationRecord, GenerationInput, Turn
from core.stages import load_stage
from rewriter.conversations import load_turns
from rewriter.prompts import RewritePrompt
from rewriter.sampling import greedy_rewrites
from scoring.generator import Generator
from tests.conftest import settings_of, write_lines
from train.evaluation import select_systems
from train.pipeline import run_pipeline

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
    files = ["--data.test", write_lines(tmp_path / "turns.jsonl", TURNS), "--data.corpus"]
    files.append(write_lines(tmp_path / "corpus.jsonl", ({"id": doc, "text": text} for doc, text in TEXTS.items())))
    limits = ["--rewriter.max_new_tokens", "8", "--generator.max_new_tokens", "6", "--retrieval.k", "1"]

    def run(*flags):
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


def test_untrained_systems_need_no_trained_stage_and_a_trained_one_is_asked_for(evaluate):
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
    labelled = Turn("a", (), "q", relevant={"d": 1})
    with pytest.raises(InputError, match="have neither `relevant` nor `answers`: nothing can be measured"):
        select_systems(["original"], {}, [Turn("a", (), "q")], answers=True)
    with pytest.raises(InputError, match="has no system left: 1 of 1 measured turns have no `rewrite`"):
        select_systems(["reference"], {}, [labelled], answers=True)
    trained = dict.fromkeys(("sft", "dpo-1", "dpo-2", "dpo"))
    assert select_systems(["sft", "dpo", "original"], trained, [labelled], answers=True) == (
        "sft", "dpo-1", "dpo-2", "dpo", "original",
    )  # fmt: skip
