"""Models and texts at their limits: values that are not numbers, unusual templates, prompts that do not fit."""

import copy
import importlib.util
import math
from pathlib import Path

import pytest
import torch

from core.chat import completion_ids, escape_special_tokens
from core.generation import generate, score_completions
from core.language_model import LanguageModel, load_tokenizer
from core.records import GenerationInput, RewardInput, Score, Turn
from core.scoring_settings import ScoringSettings
from core.settings import RewriterSettings
from rewriter.prompts import RewritePrompt
from rewriter.sampling import greedy_rewrites, sample_rewrites
from scoring.entailment import load_entailment
from scoring.generator import Generator
from scoring.scorer import Scorer
from tests.conftest import small_tokenizer
from tests.families import READINGS, family
from tests.oracle import assert_same_stats, plain_scores, prompt_of


def test_pad_token_equal_to_eos():
    lm = family("qwen2")
    before = Generator(lm, 8, 1000).answers(READINGS)
    lm.tokenizer.pad_token = lm.tokenizer.eos_token
    for one, other in zip(before, Generator(lm, 8, 1000).answers(READINGS), strict=True):
        assert one.answer == other.answer and one.stats.hd == pytest.approx(other.stats.hd, abs=1e-4)


# ------------------------------------------------------------------------------------------------ numbers that break


def with_logits(lm: LanguageModel, tokens: int | slice, value: float) -> LanguageModel:
    """The model with changed logits for some tokens."""

    def change(module, inputs, logits):
        logits = logits.clone()
        logits[..., tokens] = value
        return logits

    lm.model.get_output_embeddings().register_forward_hook(change)
    return lm


def score_of(lm: LanguageModel, item: RewardInput, reward: str = "key_entropy", room: int = 5) -> Score:
    return Scorer(Generator(lm, room, 1000), ScoringSettings()).scores([item], [reward])[0][reward]


def test_a_masked_vocabulary():
    generator = Generator(with_logits(family("llama"), slice(20, None), -math.inf), 6, 1000)
    for reading, answer in zip(READINGS, generator.answers(READINGS), strict=True):
        assert_same_stats(answer.stats, plain_scores(generator, reading))
        assert max(answer.stats.hd) <= math.log(20)


def test_all_mass_on_one_token_and_an_answer_that_never_ends():
    score = score_of(with_logits(family("qwen2"), 300, 1e9), RewardInput(READINGS[0]))
    assert score.value == 0.0 and score.rule == "fallback" and not score.ended
    assert len(score.stats.tokens) == 5 and score.stats.hd == (0.0,) * 5


def test_an_empty_answer_has_a_reason_and_no_value():
    lm = family("qwen2")
    score = score_of(with_logits(lm, lm.tokenizer.eos_token_id, 1e4), RewardInput(READINGS[0]))
    assert score.value is None and score.error == "empty answer"


def test_not_a_number_fails_one_record_and_the_others_go_on():
    lm = family("llama")
    prompts = [prompt_of(lm, reading, 5)[0] for reading in READINGS]
    poison = (set(prompts[1]) - {*prompts[0], *prompts[2]}).pop()
    with torch.no_grad():
        lm.model.get_input_embeddings().weight[poison] = float("nan")
    rule = ScoringSettings(samples=2, sample_tokens=4)
    scorer = Scorer(Generator(lm, 5, 1000), rule, load_entailment("exact", 1000))
    items = [RewardInput(reading, (True,) * len(reading.documents), ("lake",)) for reading in READINGS]
    names = ["udcg", "answer_logprob", "delta_seper_soft", "delta_seper_hard"]
    for name, score in scorer.scores(items, ["key_entropy", *names])[1].items():
        assert score.value is None and "not a number" in score.error, name
    for score in scorer.scores([items[0]], names)[0].values():
        assert math.isfinite(score.value)
    clean = Generator(family("llama"), 5, 1000)
    for i in (0, 2):
        score = scorer.scores(items, ["key_entropy"])[i]["key_entropy"]
        assert score.stats.hd == pytest.approx(plain_scores(clean, READINGS[i]).hd, abs=1e-4)


def test_a_reference_answer_of_zero_probability_has_a_reason():
    lm = family("qwen2")
    with_logits(lm, completion_ids(lm, "Port Verna")[0], -math.inf)
    score = score_of(lm, RewardInput(READINGS[0], answers=("Port Verna",)), "answer_logprob")
    assert score.value is None and "infinite" in score.error
    score = score_of(lm, RewardInput(READINGS[0], answers=("Port Verna", "lake")), "answer_logprob")
    assert math.isfinite(score.value)


# ------------------------------------------------------------------------------------------------ templates, lengths


def test_a_prompt_that_nearly_fills_learned_positions_is_read_with_short_ones():
    lm = family("gpt2")
    short = prompt_of(lm, READINGS[2], 8)[0]
    long = (short * 20)[: lm.context - 8]
    alone, beside = (
        generate(lm, prompts, 8, 10_000)[0][0] for prompts in ([long], [long, short, long[:-3], short[:-2]])
    )
    assert beside.ids == alone.ids and beside.logprobs == pytest.approx(alone.logprobs, abs=1e-4)
    completions = [long[5:13], short[:40]]
    together, alone = (score_completions(lm, [long, short][:n], completions[:n], 10_000)[0] for n in (2, 1))
    assert together.logprobs == pytest.approx(alone.logprobs, abs=1e-4)


def test_templates_that_let_a_model_think(tmp_path, caplog):
    lm = family("qwen3")
    folder = Path(importlib.util.find_spec("trl").origin).parent / "chat_templates"
    lm.tokenizer.chat_template = (folder / "qwen3.jinja").read_text()
    lm.tokenizer.save_pretrained(tmp_path)
    lm = LanguageModel("thinks if asked", lm.model, load_tokenizer(str(tmp_path)))
    prompt = lm.tokenizer.decode(prompt_of(lm, READINGS[0], 8)[0])
    assert prompt.endswith("<think>\n\n</think>\n\n")
    assert lm.tokenizer.decode(completion_ids(lm, "  NO-RESPONSE \n")) == "NO-RESPONSE"
    load_tokenizer(str(tmp_path)).save_pretrained(tmp_path / "again")
    assert load_tokenizer(str(tmp_path / "again")).chat_template == lm.tokenizer.chat_template
    for name in ("gptoss", "deepseek_r1_distill"):
        lm.tokenizer.chat_template = (folder / f"{name}.jinja").read_text()
        lm = LanguageModel(name, lm.model, lm.tokenizer)
        assert lm.tokenizer.decode(completion_ids(lm, "NO-RESPONSE")) == "NO-RESPONSE"
        assert f"{name}: the chat template inserts text between a prompt and its reply" in caplog.text


def test_added_tokens_of_plain_text_are_unchanged():
    tokenizer = copy.deepcopy(small_tokenizer())
    tokenizer.add_tokens(["\n\n", "<table>"])
    assert escape_special_tokens(tokenizer, "One.\n\n<table>") == "One.\n\n<table>"
    assert escape_special_tokens(tokenizer, f"One.{tokenizer.eos_token}") != f"One.{tokenizer.eos_token}"
    tokenizer.chat_template += "{# <table> #}"
    assert escape_special_tokens(tokenizer, "<table>") == "< table>"


def test_a_prompt_longer_than_the_context():
    lm = family("gpt2")
    lm.model.config.max_position_embeddings = len(prompt_of(lm, READINGS[1], 8)[0]) + 7
    score = score_of(lm, RewardInput(READINGS[1]), room=8)
    assert score.cut == 1 and score.value is not None


def test_a_passage_longer_than_the_context_has_no_value_by_itself():
    lm = family("gpt2")
    lm.model.config.max_position_embeddings = 200
    fits, long = GenerationInput.of([], "Who?", ["One."]), GenerationInput.of([], "Who?", ["One.", "two " * 300])
    items = [RewardInput(reading, (True,) * len(reading.documents), ("One",)) for reading in (fits, long)]
    rule = ScoringSettings(sample_tokens=8, samples=2, entailment="exact")
    judge = Scorer(Generator(lm, 8, 1000), rule, load_entailment("exact", 1000))
    short, cut = judge.scores(items, ["udcg", "answer_logprob", "delta_seper_soft", "key_entropy"])
    assert all(one.value is not None for one in short.values())
    reasons = {"udcg": "a document does not fit", "answer_logprob": "a document with a reference answer does not fit"}
    for name, reason in reasons.items():
        assert cut[name].value is None and reason in cut[name].error
    for name in ("delta_seper_soft", "key_entropy"):
        assert cut[name].cut == 1 and cut[name].value == pytest.approx(short[name].value, abs=1e-4)
    alone = GenerationInput.of([], "Who?", ["two " * 300])
    none = judge.scores([RewardInput(alone, (True,), ("One",))], ["delta_seper_soft"])[0]["delta_seper_soft"]
    assert none.value is None and "no document fits" in none.error
    too_long = judge.scores([RewardInput(fits, (True,), ("One " * 300,))], ["answer_logprob"])[0]["answer_logprob"]
    assert too_long.value is None and "does not fit" in too_long.error


def test_a_question_longer_than_the_context():
    lm = family("gpt2")
    lm.model.config.max_position_embeddings = 200
    long = "Where was " + "she and " * 200 + "he born?"
    inputs = [RewardInput(GenerationInput.of([], question, ["One."])) for question in (long, "Who?")]
    scores = Scorer(Generator(lm, 8, 1000), ScoringSettings()).scores(inputs, ["key_entropy"])
    assert "does not fit" in scores[0]["key_entropy"].error and scores[1]["key_entropy"].error is None
    turns = [Turn("a", (), long), Turn("b", (), "Who?")]
    options = RewriterSettings(n=3, max_new_tokens=6)
    too_long, short = sample_rewrites(lm, turns, options, RewritePrompt(), 1)
    assert not too_long.candidates and too_long.counts["too_long"] == 1 and short.candidates
    assert greedy_rewrites(lm, turns, options, RewritePrompt())[0] == long
