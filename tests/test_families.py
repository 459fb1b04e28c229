"""The fast passes equal the plain oracle on every family of models, made small and random from their configs."""

import copy
import importlib.util
import logging
import math
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MistralConfig,
    MistralForCausalLM,
    MptConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)  # fmt: skip

from core.chat import harmless, reply_ids
from core.decoding import decode, score_continuations
from core.errors import InputError
from core.language_model import PLAIN_TEMPLATE, LanguageModel, load_language_model, load_tokenizer
from core.parts import fit_to_cpu, rotary
from core.runtime import log
from core.settings import ScoringSettings
from scoring.entailment import load_entailment
from scoring.generator import Reading, answer_all, prompt_of
from scoring.rewards import Item, Judge
from tests.oracle import plain_no_res, plain_scores
from train.tiny_lessons import CHAT_TEMPLATE
from train.tiny_tokenizer import make_tokenizer

TURN = "{% for m in messages %}{{ '<|' + m['role'] + '|> ' + m['content'] + '<|end|>' }}{% endfor %}"
ASK = "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
SIZES = dict(hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
FAMILIES = {
    "llama": (LlamaForCausalLM, LlamaConfig, SIZES, "{{ bos_token }}" + TURN + ASK),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, SIZES, CHAT_TEMPLATE),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, SIZES | {"head_dim": 16}, CHAT_TEMPLATE),
    "mistral": (MistralForCausalLM, MistralConfig, SIZES | {"sliding_window": 24}, "{{ bos_token }}" + TURN + ASK),
    "gemma2": (
        Gemma2ForCausalLM, Gemma2Config, SIZES | {"head_dim": 16, "sliding_window": 32},
        NO_SYSTEM + "{{ bos_token }}" + TURN + ASK,
    ),
    "gpt2": (GPT2LMHeadModel, GPT2Config, {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 1024}, None),
}  # fmt: skip
HISTORY = [{"role": "user", "content": "Who made it?"}, {"role": "assistant", "content": "Ann Lee"}]
READINGS = [
    Reading.of([], "Where was Talpa born?", ["Talpa was born in Port Verna."]),
    Reading.of(HISTORY, "Where was she born?", ["One text.", "A much longer text about a lake by the sea.", "Third."]),
    Reading.of(HISTORY, "Where was she born?", ["One text."]),
]


@cache
def tokenizer_of_600():
    return make_tokenizer(0, size=600, episodes=60)


def family(kind: str, dtype: torch.dtype = torch.float32, seed: int = 3) -> LanguageModel:
    """A random model with a tokenizer that adds a BOS by itself, as Llama's and Gemma's do."""
    from tokenizers import processors

    model_class, config_class, sizes, template = FAMILIES[kind]
    tokenizer = copy.deepcopy(tokenizer_of_600())
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tokenizer.bos_token_id)]
    )
    tokenizer.chat_template = template or PLAIN_TEMPLATE
    torch.manual_seed(seed)
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = config_class(vocab_size=len(tokenizer), **sizes, **ids, bos_token_id=tokenizer.bos_token_id)
    model = model_class(config).to(dtype).eval()
    with torch.no_grad():  # random weights alone give answers of one repeated token and entropies all alike
        for weight in model.parameters():
            weight.mul_(2.0 if weight.ndim == 2 else 1.0)
    return LanguageModel(kind, model, tokenizer)


@pytest.fixture(scope="module", params=FAMILIES)
def small(request):
    """A model changed as `load_language_model` changes it on a CPU; the oracle has one that is not."""
    lm = family(request.param)
    fit_to_cpu(lm.model)
    return lm


def test_equals_the_oracle_alone_and_together(small):
    fast, untouched = answer_all(small, READINGS, 8, 250), family(small.name)
    for reading, made in zip(READINGS, fast, strict=True):
        plain = plain_scores(untouched, reading, 8)
        alone = answer_all(small, [reading], 8, 1)[0]
        assert made.stats.tokens == plain.tokens == alone.stats.tokens and plain.tokens
        for column in ("h0", "hd", "logp0", "logpd"):
            assert getattr(made.stats, column) == pytest.approx(getattr(plain, column), abs=1e-4)
            assert getattr(made.stats, column) == pytest.approx(getattr(alone.stats, column), abs=1e-4)


def test_one_bos_at_most_and_the_question_is_there(small):
    for reading in READINGS:
        ids, _ = prompt_of(small, reading, 8)
        assert ids.count(small.tokenizer.bos_token_id) == ("bos_token" in small.tokenizer.chat_template)
        text = small.tokenizer.decode(ids)
        assert reading.question in text and all(document in text for document in reading.documents)


def test_parts_take_the_place_of_those_with_the_same_text(small):
    changed = {type(module).__name__ for module in small.model.modules() if "forward" in vars(module)}
    of_llama = {"RMSNorm", "MLP"}
    wanted = {"llama": of_llama, "qwen2": of_llama, "qwen3": of_llama, "mistral": of_llama, "gemma2": {"MLP"}}
    assert {name.lower() for name in changed} == {small.name + part.lower() for part in wanted.get(small.name, ())}
    home = sys.modules[type(small.model).__module__]
    assert small.name not in wanted or home.apply_rotary_pos_emb is rotary


def test_logits_are_the_same_with_parts_and_trained_weights_have_their_gradients(small):
    untouched, ids = family(small.name), torch.arange(1, 40)[None]
    plain = untouched.model(ids).logits
    with torch.inference_mode():
        assert torch.allclose(small.model(ids).logits, plain, atol=1e-4)
    plain.logsumexp(-1).sum().backward()
    assert all(weight.grad.isfinite().all() for weight in untouched.model.parameters())


def test_prompts_of_one_token(small):
    prompts, replies = [[5], [6]], [[[7, 8]], [[9]]]
    for prompt, found, wanted in zip(prompts, score_continuations(small, prompts, replies), replies, strict=True):
        logits = family(small.name).model(torch.tensor([prompt + wanted[0]])).logits[0, :-1]
        plain = logits.log_softmax(-1)[range(len(wanted[0])), wanted[0]].tolist()
        assert found[0].logprobs == pytest.approx(plain, abs=1e-4)


def test_parts_of_one_model_change_nothing_in_one_of_16_bits():
    lm, prompts, replies = family("qwen2", torch.bfloat16), [list(range(5, 30))], [[[7, 8, 9]]]
    before = score_continuations(lm, prompts, replies)
    fit_to_cpu(family("qwen2").model)
    assert score_continuations(lm, prompts, replies) == before


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (
            MambaConfig(hidden_size=32, num_hidden_layers=2, state_size=4),
            "`mamba` model keeps a state of all it has read",
        ),
        (MptConfig(d_model=32, n_heads=2, n_layers=2), "`mpt` model gives other numbers to a prompt"),
    ],
)
def test_a_model_that_cannot_read_prompts_together_is_refused(random_llama, tmp_path, config, why):
    load_tokenizer(str(random_llama)).save_pretrained(tmp_path)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=why):
        load_language_model(str(tmp_path))


def test_a_rope_that_changes_with_the_length_is_told(random_llama, tmp_path, caplog):
    load_tokenizer(str(random_llama)).save_pretrained(tmp_path)
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    sizes = SIZES | {"max_position_embeddings": 128, "vocab_size": 600}
    LlamaForCausalLM(LlamaConfig(**sizes, rope_parameters=rope)).save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING, logger=log.name):
        load_language_model(str(tmp_path))
    assert "a rope `dynamic` is another for long prompts" in caplog.text and "keep all to 128 tokens" in caplog.text


def test_udcg_equals_the_published_way(small):
    items = [Item(reading, tuple(i == 0 for i in range(len(reading.documents)))) for reading in READINGS]
    untouched = family(small.name)
    for abstention in ("first_token", "sequence"):
        judge = Judge(small, ScoringSettings(reward="udcg", abstention=abstention), 8, 250)
        for item, found in zip(items, judge.scores(items, ["udcg"]), strict=True):
            plain = plain_no_res(untouched, item.reading, reply_ids(small, "NO-RESPONSE"), abstention)
            assert found["udcg"].no_res == pytest.approx(plain, rel=1e-3, abs=1e-9)


@pytest.mark.parametrize("kind", ["qwen2", "gemma2"])
def test_bfloat16(kind):
    lm = family(kind, torch.bfloat16)
    for reading, made in zip(READINGS, answer_all(lm, READINGS, 6, 1000), strict=True):
        plain = plain_scores(lm, reading, 6)
        assert all(map(math.isfinite, (*made.stats.h0, *made.stats.hd)))
        if made.stats.tokens == plain.tokens:
            assert made.stats.hd == pytest.approx(plain.hd, abs=0.2)


def test_pad_token_equal_to_eos():
    lm = family("qwen2")
    before = answer_all(lm, READINGS, 8, 1000)
    lm.tokenizer.pad_token = lm.tokenizer.eos_token
    for one, other in zip(before, answer_all(lm, READINGS, 8, 1000), strict=True):
        assert one.answer == other.answer and one.stats.hd == pytest.approx(other.stats.hd, abs=1e-4)


# ------------------------------------------------------------------------------------------------ numbers that break


def with_logits(lm: LanguageModel, change) -> LanguageModel:
    """The model with changed logits."""
    lm.model.get_output_embeddings().register_forward_hook(lambda module, inputs, logits: change(logits))
    return lm


def test_a_masked_vocabulary():
    def mask(logits):
        logits = logits.clone()
        logits[..., 20:] = float("-inf")
        return logits

    lm = with_logits(family("llama"), mask)
    for reading, made in zip(READINGS, answer_all(lm, READINGS, 6, 1000), strict=True):
        plain = plain_scores(lm, reading, 6)
        assert made.stats.tokens == plain.tokens
        assert made.stats.hd == pytest.approx(plain.hd, abs=1e-4) and max(made.stats.hd) <= math.log(20)


def test_all_mass_on_one_token_and_an_answer_that_never_ends():
    def one(logits):
        changed = torch.full_like(logits, -1e9)
        changed[..., 300] = 0.0
        return changed

    lm = with_logits(family("qwen2"), one)
    judge = Judge(lm, ScoringSettings(), 5, 1000)
    score = judge.scores([Item(READINGS[0])], ["key_entropy"])[0]["key_entropy"]
    assert score.value == 0.0 and score.rule == "fallback" and not score.ended
    assert len(score.stats.tokens) == 5 and score.stats.hd == (0.0,) * 5


def test_an_empty_answer_has_a_reason_and_no_value():
    lm = family("qwen2")
    end = lm.tokenizer.eos_token_id

    def stop(logits):
        changed = logits.clone()
        changed[..., end] = 1e4
        return changed

    score = Judge(with_logits(lm, stop), ScoringSettings(), 5, 1000).scores([Item(READINGS[0])], ["key_entropy"])[0]
    assert score["key_entropy"].value is None and score["key_entropy"].error == "empty answer"


def test_not_a_number_fails_one_record_and_the_others_go_on():
    lm = family("llama")
    prompts = [prompt_of(lm, reading, 5)[0] for reading in READINGS]
    poison = (set(prompts[1]) - {*prompts[0], *prompts[2]}).pop()
    with torch.no_grad():
        lm.model.get_input_embeddings().weight[poison] = float("nan")
    judge = Judge(lm, ScoringSettings(), 5, 1000)
    found = [one["key_entropy"] for one in judge.scores([Item(reading) for reading in READINGS], ["key_entropy"])]
    clean = family("llama")
    assert found[1].value is None and "not a number" in found[1].error
    for i in (0, 2):
        assert found[i].stats.hd == pytest.approx(plain_scores(clean, READINGS[i], 5).hd, abs=1e-4)
    judge = Judge(lm, ScoringSettings(samples=2, sample_tokens=4), 5, 1000, load_entailment("exact", 1000))
    items = [Item(reading, (True,) * len(reading.documents), ("lake",)) for reading in READINGS]
    names = ["udcg", "answer_logprob", "delta_seper_soft", "delta_seper_hard"]
    for name, one in judge.scores(items, names)[1].items():
        assert one.value is None and "not a number" in one.error, name
    for one in judge.scores([items[0]], names)[0].values():
        assert math.isfinite(one.value)


def test_a_reference_answer_that_the_model_can_never_say_has_a_reason():
    lm = family("qwen2")
    banned = reply_ids(lm, "Port Verna")[0]

    def masked(logits):
        changed = logits.clone()
        changed[..., banned] = -math.inf
        return changed

    judge = Judge(with_logits(lm, masked), ScoringSettings(), 5, 1000)
    item = Item(READINGS[0], answers=("Port Verna",))
    score = judge.scores([item], ["answer_logprob"])[0]["answer_logprob"]
    assert score.value is None and "infinite" in score.error
    both = judge.scores([Item(READINGS[0], answers=("Port Verna", "lake"))], ["answer_logprob"])[0]["answer_logprob"]
    assert math.isfinite(both.value)


def test_a_prompt_that_nearly_fills_learned_positions_is_read_with_short_ones():
    lm = family("gpt2")
    short = prompt_of(lm, READINGS[2], 8)[0]
    long = (short * 20)[: lm.context - 8]
    alone, beside = decode(lm, [long], 8)[0][0], decode(lm, [long, short, long[:-3], short[:-2]], 8)[0][0]
    assert beside.ids == alone.ids and beside.logprobs == pytest.approx(alone.logprobs, abs=1e-4)
    replies = [[long[5:13]], [short[:40]]]
    given, given_alone = (score_continuations(lm, [long, short][:n], replies[:n])[0][0] for n in (2, 1))
    assert given.logprobs == pytest.approx(given_alone.logprobs, abs=1e-4)


def test_templates_that_let_a_model_think(tmp_path, caplog):
    lm = family("qwen3")
    folder = Path(importlib.util.find_spec("trl").origin).parent / "chat_templates"
    lm.tokenizer.chat_template = (folder / "qwen3.jinja").read_text()
    lm.tokenizer.save_pretrained(tmp_path)
    lm = LanguageModel("thinks if asked", lm.model, load_tokenizer(str(tmp_path)))
    said = lm.tokenizer.decode(prompt_of(lm, READINGS[0], 8)[0])
    assert said.endswith("<think>\n\n</think>\n\n")
    assert lm.tokenizer.decode(reply_ids(lm, "NO-RESPONSE")) == "NO-RESPONSE"
    load_tokenizer(str(tmp_path)).save_pretrained(tmp_path / "again")
    assert load_tokenizer(str(tmp_path / "again")).chat_template == lm.tokenizer.chat_template
    for name in ("gptoss", "deepseek_r1_distill"):
        lm.tokenizer.chat_template = (folder / f"{name}.jinja").read_text()
        lm = LanguageModel(name, lm.model, lm.tokenizer)
        assert lm.tokenizer.decode(reply_ids(lm, "NO-RESPONSE")) == "NO-RESPONSE"
        assert f"{name}: its chat template puts more than the reply after a prompt" in caplog.text


def test_added_tokens_of_plain_text_stay_as_they_are():
    tokenizer = copy.deepcopy(tokenizer_of_600())
    tokenizer.add_tokens(["\n\n", "<table>"])
    assert harmless(tokenizer, "One.\n\n<table>") == "One.\n\n<table>"
    assert harmless(tokenizer, f"One.{tokenizer.eos_token}") != f"One.{tokenizer.eos_token}"
    tokenizer.chat_template += "{# <table> #}"
    assert harmless(tokenizer, "<table>") == "< table>"


def test_a_prompt_longer_than_the_context():
    lm = family("gpt2")
    lm.model.config.max_position_embeddings = len(prompt_of(lm, READINGS[1], 8)[0]) + 7
    scores = Judge(lm, ScoringSettings(), 8, 1000).scores([Item(READINGS[1])], ["key_entropy"])[0]
    assert scores["key_entropy"].cut == 1 and scores["key_entropy"].value is not None


def test_a_passage_longer_than_the_context_has_no_value_by_itself():
    lm = family("gpt2")
    lm.model.config.max_position_embeddings = 200
    fits, long = Reading.of([], "Who?", ["One."]), Reading.of([], "Who?", ["One.", "two " * 300])
    items = [Item(reading, (True,) * len(reading.documents), ("One",)) for reading in (fits, long)]
    rule = ScoringSettings(sample_tokens=8, samples=2, entailment="exact")
    judge = Judge(lm, rule, 8, 1000, load_entailment("exact", 1000))
    short, cut = judge.scores(items, ["udcg", "answer_logprob", "delta_seper_soft", "key_entropy"])
    assert all(one.value is not None for one in short.values())
    reasons = {"udcg": "a document does not fit", "answer_logprob": "a document with a reference answer does not fit"}
    for name, reason in reasons.items():
        assert cut[name].value is None and reason in cut[name].error
    for name in ("delta_seper_soft", "key_entropy"):
        assert cut[name].cut == 1 and cut[name].value == pytest.approx(short[name].value, abs=1e-4)
    alone = Reading.of([], "Who?", ["two " * 300])
    none = judge.scores([Item(alone, (True,), ("One",))], ["delta_seper_soft"])[0]["delta_seper_soft"]
    assert none.value is None and "no document fits" in none.error
    too_long = judge.scores([Item(fits, (True,), ("One " * 300,))], ["answer_logprob"])[0]["answer_logprob"]
    assert too_long.value is None and "does not fit" in too_long.error


def test_a_question_longer_than_the_context():
    from core.records import Turn
    from rewriter.sampling import best_rewrites, sample_rewrites

    lm = family("gpt2")
    lm.model.config.max_position_embeddings = 200
    long = "Where was " + "she and " * 200 + "he born?"
    scores = Judge(lm, ScoringSettings(), 8, 1000).scores(
        [Item(Reading.of([], long, ["One."])), Item(Reading.of([], "Who?", ["One."]))], ["key_entropy"]
    )
    assert "does not fit" in scores[0]["key_entropy"].error and scores[1]["key_entropy"].error is None
    turns = [Turn("a", (), long), Turn("b", (), "Who?")]
    (none, counts), (some, _) = sample_rewrites(lm, turns, 3, 1.0, 1.0, 6, 1)
    assert not none and counts["too_long"] == 1 and some
    assert best_rewrites(lm, turns, 6)[0] == long
