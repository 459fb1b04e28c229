"""Using a trained rewriter: from a run, an adapter or a merged model, in Python and from the shell."""

import json
import shutil
from dataclasses import replace

import pytest

from core.errors import InputError
from core.language_model import load_language_model
from core.records import Turn
from core.settings import RewriterSettings
from rewriter import Rewriter
from rewriter.__main__ import main
from rewriter.adapter_settings import load_adapter_settings, save_adapter_settings
from rewriter.prompts import RewritePrompt
from rewriter.sampling import greedy_rewrites
from tests.conftest import call, write_lines

HISTORY = [{"role": "user", "content": "Who made Talpa?"}, {"role": "assistant", "content": "Ann Lee."}]
QUESTION = "Where was she born?"


@pytest.fixture(scope="module")
def run(random_llama, adapters, tmp_path_factory):
    """A run folder with an adapter."""
    folder = tmp_path_factory.mktemp("run")
    shutil.copytree(adapters["first"], folder / "adapter")
    options = RewriterSettings(model=str(random_llama), max_new_tokens=8, history_messages=1)
    save_adapter_settings(folder / "adapter", options)
    return folder


@pytest.fixture(scope="module")
def expected(run):
    options = load_adapter_settings(run)
    lm = load_language_model(options.model, options.adapter)
    return greedy_rewrites(lm, [Turn("a", tuple(HISTORY), QUESTION)], options, RewritePrompt.of(options))[0]


def test_a_run_and_its_adapter_are_one_rewriter(run, expected):
    for name in (run, run / "adapter", str(run)):
        assert Rewriter.from_pretrained(name).rewrite(HISTORY, QUESTION) == expected


def test_a_merged_model(run, expected, tmp_path):
    options = load_adapter_settings(run)
    lm = load_language_model(options.model, options.adapter)  # merged in float32
    lm.model.save_pretrained(tmp_path / "merged")
    lm.tokenizer.save_pretrained(tmp_path / "merged")
    save_adapter_settings(tmp_path / "merged", replace(options, adapter=None))
    assert Rewriter.from_pretrained(tmp_path / "merged").rewrite(HISTORY, QUESTION) == expected


def test_settings_can_be_overridden(run, expected):
    rewriter = Rewriter.from_pretrained(run, query="joined", question_weight=1)
    assert rewriter.rewrite(HISTORY, QUESTION) == f"{QUESTION} {expected}"


def test_examples_are_used_and_wrong_overrides_refused(run):
    examples = [{"conversation": "User: Who?", "rewrite": "Who is Talpa?"}]
    rewriter = Rewriter.from_pretrained(run, examples=examples)
    prompt = RewritePrompt.of(rewriter.options, examples=True)
    assert prompt.examples == (("User: Who?", "Who is Talpa?"),)
    turn = Turn("a", tuple(HISTORY), QUESTION)
    assert [rewriter.rewrite(HISTORY, QUESTION)] == greedy_rewrites(
        rewriter.backend.lm, [turn], rewriter.options, prompt
    )
    with pytest.raises(InputError, match="unknown setting `max_new_token`; did you mean `max_new_tokens`"):
        Rewriter.from_pretrained(run, max_new_token=8)


def test_samples_are_distinct_and_repeatable(run):
    rewriter = Rewriter.from_pretrained(run)
    queries = rewriter.rewrite(HISTORY, QUESTION, n=4)
    assert queries == rewriter.rewrite(HISTORY, QUESTION, n=4)
    assert 1 < len(queries) == len(set(queries)) <= 4


def test_equal_samples_are_merged_in_the_order_of_sampling():
    class Backend:
        def rewrites(self, turns, options, n):
            return [["Who is Ann?", "", "Ann born", "who is ann", "Ann Lee"], ["", ""]]

    turns = [Turn("a", (), "Who?"), Turn("b", (), "Where?")]
    queries = Rewriter(Backend(), RewriterSettings()).queries(turns, 5)
    assert queries == [["Who is Ann?", "Ann born", "Ann Lee"], ["Where?"]]


def test_a_folder_without_settings_is_named(tmp_path):
    with pytest.raises(InputError, match="contains no rewriter.json; name a run or an adapter"):
        Rewriter.from_pretrained(tmp_path)


def test_a_wrong_value_in_the_settings_of_an_adapter_is_named(tmp_path):
    save_adapter_settings(tmp_path, RewriterSettings(model="m"))
    file = tmp_path / "rewriter.json"
    assert load_adapter_settings(tmp_path) == RewriterSettings(model=str(tmp_path))
    file.write_text(file.read_text().replace("48", '"many"'))
    with pytest.raises(InputError, match=f"`{file}: max_new_tokens` must be a whole number >= 1, got 'many'"):
        load_adapter_settings(tmp_path)


def test_a_run_that_is_not_complete_is_named(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(InputError, match="has no adapter yet; complete its `dpo` stage first"):
        Rewriter.from_pretrained(tmp_path)


def test_the_command(run, expected, tmp_path):
    turns = [{"id": f"c_{n}", "history": HISTORY, "question": QUESTION} for n in (1, 2)]
    words = [run, "--input", write_lines(tmp_path / "turns.jsonl", turns)]
    output = [json.loads(line) for line in call(main, *words).splitlines() if line.startswith("{")]
    assert output == [{"id": "c_1", "query": expected}, {"id": "c_2", "query": expected}]
    call(main, *words, "--output", tmp_path / "out.jsonl", "--n", "3")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == ["c_1", "c_2"] and all(1 <= len(row["queries"]) <= 3 for row in rows)


def test_a_conversation_at_the_prompt(run, expected, monkeypatch):
    typed = iter(["Who made Talpa?", "Ann Lee.", QUESTION, "By the sea.", ""])
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))
    monkeypatch.setattr("sys.stdin", open("/dev/null"))
    assert f"query:    {expected}\n" in call(main, run)
