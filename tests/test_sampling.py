"""Sampling: seeded by turn, independent of the batch, the right distribution, merged and counted."""

import json
from collections import Counter
from dataclasses import replace

import pytest
import torch

from core.chat import chat_ids
from core.errors import InputError
from core.language_model import load_language_model, load_tokenizer
from core.records import Turn
from core.sampling import sampler
from core.settings import RewriterSettings
from rewriter.__main__ import main
from rewriter.prompts import RewritePrompt, read_rewrite
from rewriter.sampling import greedy_rewrites, prompts_of, sample_rewrites
from tests.conftest import ROOT, call

TURNS = [
    Turn("a_1", (), "When was Talpa Nalra born?"),
    Turn(
        "a_2", ({"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Talpa Nalra"}), "And the pet?"
    ),
    Turn("b_1", (), "Where is Port Verna, and who lives there now?"),
]
OPTIONS = RewriterSettings(n=4, max_new_tokens=8)
PROMPT = RewritePrompt()


def test_a_turn_gets_the_same_samples_in_any_batch(lm):
    together = sample_rewrites(lm, TURNS, OPTIONS, PROMPT, 3)
    alone = [sample_rewrites(lm, [turn], OPTIONS, PROMPT, 3)[0] for turn in TURNS]
    for one, other in zip(together, alone, strict=True):
        assert [c.text for c in one.candidates] == [c.text for c in other.candidates]
        logprobs = [c.logprob for c in other.candidates]
        assert [c.logprob for c in one.candidates] == pytest.approx(logprobs, abs=1e-3)
    assert sample_rewrites(lm, TURNS, OPTIONS, PROMPT, 4) != together


def test_every_sample_is_accounted_for(lm):
    for turn, record in zip(TURNS, sample_rewrites(lm, TURNS, OPTIONS, PROMPT, 3), strict=True):
        candidates, counts = record.candidates, record.counts
        assert record.id == turn.id and sum(c.count for c in candidates) + counts.get("empty", 0) == 4
        assert counts.get("merged", 0) == sum(c.count - 1 for c in candidates)
        assert all(c.text == " ".join(c.text.split()) and c.logprob < 0 and c.tokens > 0 for c in candidates)


def test_included_queries_join_the_samples(lm):
    options = replace(OPTIONS, include=["question", "history"], query="joined")
    for turn, record in zip(TURNS, sample_rewrites(lm, TURNS, options, PROMPT, 3), strict=True):
        candidates = record.candidates
        included = {c.source: c for c in candidates if c.source != "sample"}
        assert included["question"].text == turn.question and included["question"].logprob is None
        assert ("history" in included) == bool(turn.history)  # otherwise the question again
        assert all(c.query == f"{turn.question} {turn.question} {c.text}" for c in candidates)
    assert included.keys() == {"question"}


def test_samples_follow_the_distribution():
    p = torch.tensor([0.5, 0.3, 0.2, 0.0])
    noise = torch.rand(20000, 1, generator=torch.Generator().manual_seed(0))
    rows, numbers = p.log().expand(20000, 4), torch.arange(20000)
    counts = Counter(sampler(noise, 1.0, 1.0)(rows, 0, numbers).tolist())
    assert [counts[i] / 20000 for i in range(4)] == pytest.approx(p.tolist(), abs=0.015)
    nucleus = sampler(noise, 1.0, 0.7)(rows, 0, numbers)  # the smallest set with at least 0.7
    assert set(nucleus.tolist()) == {0, 1}
    cold = Counter(sampler(noise, 0.5, 1.0)(rows, 0, numbers).tolist())
    assert cold[0] / 20000 == pytest.approx(0.25 / 0.38, abs=0.015)


def test_greedy_equals_generate(lm):
    ids = chat_ids(lm.tokenizer, [PROMPT.messages([], TURNS[0].question)])[0]
    plain = lm.model.generate(
        torch.tensor([ids]), max_new_tokens=8, do_sample=False, pad_token_id=lm.tokenizer.pad_token_id
    )
    text = lm.tokenizer.decode(plain[0, len(ids) :], skip_special_tokens=True)
    assert greedy_rewrites(lm, TURNS, OPTIONS, PROMPT)[0] == (read_rewrite(text) or TURNS[0].question)


def test_a_long_history_loses_its_oldest_messages_and_counts_them(lm, monkeypatch):
    full, _ = prompts_of(lm, [TURNS[1]], PROMPT, 8)[0]
    monkeypatch.setattr(lm.model.config, "max_position_embeddings", len(full) + 7)
    shorter, left_out = prompts_of(lm, [TURNS[1]], PROMPT, 8)[0]
    assert left_out == 1 and len(shorter) < len(full) and "And the pet?" in lm.tokenizer.decode(shorter)


def test_a_missing_model_is_named():
    with pytest.raises(InputError, match="`./no/such/model` cannot be loaded: no folder at ./no/such/model"):
        load_language_model("./no/such/model")


def test_a_chat_template_that_refuses_a_prompt_is_named(random_llama):
    tokenizer = load_tokenizer(str(random_llama))
    tokenizer.chat_template = "{{ messages[0].parts.text }}"
    with pytest.raises(InputError, match=r"the chat template of .* refuses a prompt \(roles: user\): .*parts"):
        chat_ids(tokenizer, [PROMPT.messages([], "Who?")])


def test_the_command_takes_the_instruction_of_the_training(tmp_path):
    earlier = [
        {"role": "user", "content": "Where was Talpa Nalra born?"},
        {"role": "assistant", "content": "Port Verna"},
    ]
    turn = {"id": "a_1", "history": earlier, "question": "And what does she work as?"}
    (tmp_path / "turns.jsonl").write_text(json.dumps(turn) + "\n")
    words = ["--model", ROOT / "configs/tiny-model", "--input", tmp_path / "turns.jsonl"]
    built_in, own = (
        [json.loads(line) for line in call(main, *words, *more).splitlines() if line.startswith("{")]
        for more in ([], ["--instruction", "Answer the last question in a few words.", "--history_words", "3"])
    )
    assert built_in[0]["id"] == own[0]["id"] == "a_1" and built_in != own
