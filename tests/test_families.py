"""The fast passes equal the plain oracle on every family of models, made small and random from their configs."""

import copy
import importlib.util
import logging
import math
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

from core.chat import completion_ids, escape_special_tokens
from core.errors import InputError
from core.generation import generate, greedy, score_completions
from core.language_model import PLAIN_TEMPLATE, LanguageModel, load_language_model, load_tokenizer
from core.progress import log
from core.records import GenerationInput, RewardInput
from core.scoring_settings import ScoringSettings
from rewriter.sampling import sampler
from scoring.entailment import load_entailment
from scoring.generator import Generator
from scoring.scorer import Scorer
from tests.oracle import plain_logged_scores, plain_no_res, plain_scores, prompt_of
from train.tiny.tokenizer import CHAT_TEMPLATE, make_tokenizer

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
    GenerationInput.of([], "Where was Talpa born?", ["Talpa was born in Port Verna."]),
    GenerationInput.of(
        HISTORY, "Where was she born?", ["One text.", "A much longer text about a lake by the sea.", "Third."]
    ),
    GenerationInput.of(HISTORY, "Where was she born?", ["One text."]),
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
    """A random model of each family."""
    return family(request.param)


def test_equals_the_oracle_alone_and_together(small):
    fast, untouched = Generator(small, 8, 250).answers(READINGS), family(small.name)
    for reading, made in zip(READINGS, fast, strict=True):
        plain = plain_scores(Generator(untouched, 8, 1000), reading)
        alone = Generator(small, 8, 1).answers([reading])[0]
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


def test_prompts_of_one_token(small):
    prompts, completions = [[5], [6]], [[7, 8], [9]]
    scored = score_completions(small, prompts, completions, 100)
    for prompt, ids, completion in zip(prompts, completions, scored, strict=True):
        logits = small.model(torch.tensor([prompt + ids])).logits[0, :-1]
        plain = logits.log_softmax(-1)[range(len(ids)), ids].tolist()
        assert completion.logprobs == pytest.approx(plain, abs=1e-4)


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


def test_logged_scores_equal_teacher_forcing_alone(small):
    """`scoring.answer: logged`: one prefix for all document lists of a turn, and for the prompt without documents."""
    reply = tuple(completion_ids(small, "She was born by the sea, in Port Verna."))
    generator = Generator(small, 8, 10_000)
    for reading, scored in zip(READINGS, generator.logged_answers(READINGS, [reply] * len(READINGS)), strict=True):
        for each, entropies, logprobs in (
            (reading, scored.stats.hd, scored.stats.logpd),
            (reading.without_documents, scored.stats.h0, scored.stats.logp0),
        ):
            ids, _ = prompt_of(small, each, len(reply))
            p = small.model(torch.tensor([[*ids, *reply]])).logits[0, len(ids) - 1 : -1].softmax(-1)
            assert entropies == pytest.approx(torch.special.entr(p).sum(-1).tolist(), abs=1e-4)
            assert logprobs == pytest.approx(p[range(len(reply)), reply].log().tolist(), abs=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_samples_of_one_prompt_are_those_of_separate_prompts(small, temperature):
    """With and without 4D masks, in any batch: the tokens that `sampler` draws, one prompt and sample at a time."""
    prompts, samples, steps = [[7, 8, 9, 10, 7, 8], [11, 12, 13], [20, 21] * 9, [30], list(range(40, 80))], 3, 10
    draws = torch.rand(len(prompts) * samples, steps, generator=torch.Generator().manual_seed(1))
    choose = sampler(draws, temperature, 1.0) if temperature else greedy
    together = generate(small, prompts, steps, 10_000, choose, samples)
    for i, prompt in enumerate(prompts):
        for sample in range(samples):
            ids = []
            for step in range(steps):
                logprobs = small.model(torch.tensor([prompt + ids])).logits[:, -1].log_softmax(-1)
                number = torch.tensor([i * samples + sample])
                token = int(choose(logprobs, torch.tensor([step]), number))
                if token in small.stop_ids:
                    break
                ids.append(token)
                completion = together[i][sample]
                assert completion.logprobs[step] == pytest.approx(float(logprobs[0, token]), abs=1e-4)
                entropy = float(torch.special.entr(logprobs.exp()).sum())
                assert completion.entropies[step] == pytest.approx(entropy, abs=1e-4)
            assert together[i][sample].ids == ids
    choose = sampler(draws[3:6], temperature, 1.0) if temperature else greedy
    assert generate(small, prompts[1:2], steps, 1, choose, samples)[0][2].ids == together[1][2].ids


def test_which_families_take_4d_masks(small):
    assert small.takes_4d_masks == (small.name not in ("mistral", "gemma2"))


def test_udcg_equals_the_published_way(small):
    items = [RewardInput(reading, tuple(i == 0 for i in range(len(reading.documents)))) for reading in READINGS]
    untouched = family(small.name)
    for abstention in ("first_token", "sequence"):
        judge = Scorer(Generator(small, 8, 250), ScoringSettings(reward="udcg", abstention=abstention))
        for item, found in zip(items, judge.scores(items, ["udcg"]), strict=True):
            plain = plain_no_res(untouched, item.generation_input, completion_ids(small, "NO-RESPONSE"), abstention)
            assert found["udcg"].no_res == pytest.approx(plain, rel=1e-3, abs=1e-9)


@pytest.mark.parametrize("kind", ["qwen2", "gemma2"])
def test_bfloat16(kind):
    lm = family(kind, torch.bfloat16)
    reply = completion_ids(lm, "She was born by the sea.")
    generator = Generator(lm, 8, 1000)
    for reading, scored in zip(READINGS, generator.logged_answers(READINGS, [reply] * len(READINGS)), strict=True):
        plain = plain_logged_scores(generator, reading, reply)
        assert scored.stats.h0 == pytest.approx(plain.h0, abs=0.1) and len(plain.h0) == len(reply)
        assert scored.stats.hd == pytest.approx(plain.hd, abs=0.1)
        assert scored.stats.logpd == pytest.approx(plain.logpd, abs=0.2)


def test_pad_token_equal_to_eos():
    lm = family("qwen2")
    before = Generator(lm, 8, 1000).answers(READINGS)
    lm.tokenizer.pad_token = lm.tokenizer.eos_token
    for one, other in zip(before, Generator(lm, 8, 1000).answers(READINGS), strict=True):
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
    for reading, made in zip(READINGS, Generator(lm, 6, 1000).answers(READINGS), strict=True):
        plain = plain_scores(Generator(lm, 6, 1000), reading)
        assert made.stats.tokens == plain.tokens
        assert made.stats.hd == pytest.approx(plain.hd, abs=1e-4) and max(made.stats.hd) <= math.log(20)


def test_all_mass_on_one_token_and_an_answer_that_never_ends():
    def one(logits):
        changed = torch.full_like(logits, -1e9)
        changed[..., 300] = 0.0
        return changed

    lm = with_logits(family("qwen2"), one)
    judge = Scorer(Generator(lm, 5, 1000), ScoringSettings())
    score = judge.scores([RewardInput(READINGS[0])], ["key_entropy"])[0]["key_entropy"]
    assert score.value == 0.0 and score.rule == "fallback" and not score.ended
    assert len(score.stats.tokens) == 5 and score.stats.hd == (0.0,) * 5


def test_an_empty_answer_has_a_reason_and_no_value():
    lm = family("qwen2")
    end = lm.tokenizer.eos_token_id

    def stop(logits):
        changed = logits.clone()
        changed[..., end] = 1e4
        return changed

    score = Scorer(Generator(with_logits(lm, stop), 5, 1000), ScoringSettings()).scores(
        [RewardInput(READINGS[0])], ["key_entropy"]
    )[0]
    assert score["key_entropy"].value is None and score["key_entropy"].error == "empty answer"


def test_not_a_number_fails_one_record_and_the_others_go_on():
    lm = family("llama")
    prompts = [prompt_of(lm, reading, 5)[0] for reading in READINGS]
    poison = (set(prompts[1]) - {*prompts[0], *prompts[2]}).pop()
    with torch.no_grad():
        lm.model.get_input_embeddings().weight[poison] = float("nan")
    judge = Scorer(Generator(lm, 5, 1000), ScoringSettings())
    found = [
        one["key_entropy"] for one in judge.scores([RewardInput(reading) for reading in READINGS], ["key_entropy"])
    ]
    clean = family("llama")
    assert found[1].value is None and "not a number" in found[1].error
    for i in (0, 2):
        assert found[i].stats.hd == pytest.approx(plain_scores(Generator(clean, 5, 1000), READINGS[i]).hd, abs=1e-4)
    judge = Scorer(Generator(lm, 5, 1000), ScoringSettings(samples=2, sample_tokens=4), load_entailment("exact", 1000))
    items = [RewardInput(reading, (True,) * len(reading.documents), ("lake",)) for reading in READINGS]
    names = ["udcg", "answer_logprob", "delta_seper_soft", "delta_seper_hard"]
    for name, one in judge.scores(items, names)[1].items():
        assert one.value is None and "not a number" in one.error, name
    for one in judge.scores([items[0]], names)[0].values():
        assert math.isfinite(one.value)


def test_a_reference_answer_that_the_model_can_never_say_has_a_reason():
    lm = family("qwen2")
    banned = completion_ids(lm, "Port Verna")[0]

    def masked(logits):
        changed = logits.clone()
        changed[..., banned] = -math.inf
        return changed

    judge = Scorer(Generator(with_logits(lm, masked), 5, 1000), ScoringSettings())
    item = RewardInput(READINGS[0], answers=("Port Verna",))
    score = judge.scores([item], ["answer_logprob"])[0]["answer_logprob"]
    assert score.value is None and "infinite" in score.error
    both = judge.scores([RewardInput(READINGS[0], answers=("Port Verna", "lake"))], ["answer_logprob"])[0][
        "answer_logprob"
    ]
    assert math.isfinite(both.value)


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
    said = lm.tokenizer.decode(prompt_of(lm, READINGS[0], 8)[0])
    assert said.endswith("<think>\n\n</think>\n\n")
    assert lm.tokenizer.decode(completion_ids(lm, "  NO-RESPONSE \n")) == "NO-RESPONSE"
    load_tokenizer(str(tmp_path)).save_pretrained(tmp_path / "again")
    assert load_tokenizer(str(tmp_path / "again")).chat_template == lm.tokenizer.chat_template
    for name in ("gptoss", "deepseek_r1_distill"):
        lm.tokenizer.chat_template = (folder / f"{name}.jinja").read_text()
        lm = LanguageModel(name, lm.model, lm.tokenizer)
        assert lm.tokenizer.decode(completion_ids(lm, "NO-RESPONSE")) == "NO-RESPONSE"
        assert f"{name}: its chat template puts more than the reply after a prompt" in caplog.text


def test_added_tokens_of_plain_text_stay_as_they_are():
    tokenizer = copy.deepcopy(tokenizer_of_600())
    tokenizer.add_tokens(["\n\n", "<table>"])
    assert escape_special_tokens(tokenizer, "One.\n\n<table>") == "One.\n\n<table>"
    assert escape_special_tokens(tokenizer, f"One.{tokenizer.eos_token}") != f"One.{tokenizer.eos_token}"
    tokenizer.chat_template += "{# <table> #}"
    assert escape_special_tokens(tokenizer, "<table>") == "< table>"


def test_a_prompt_longer_than_the_context():
    lm = family("gpt2")
    lm.model.config.max_position_embeddings = len(prompt_of(lm, READINGS[1], 8)[0]) + 7
    scores = Scorer(Generator(lm, 8, 1000), ScoringSettings()).scores([RewardInput(READINGS[1])], ["key_entropy"])[0]
    assert scores["key_entropy"].cut == 1 and scores["key_entropy"].value is not None


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
    from core.records import Turn
    from core.settings import RewriterSettings
    from rewriter.prompts import RewritePrompt
    from rewriter.sampling import greedy_rewrites, sample_rewrites

    lm = family("gpt2")
    lm.model.config.max_position_embeddings = 200
    long = "Where was " + "she and " * 200 + "he born?"
    scores = Scorer(Generator(lm, 8, 1000), ScoringSettings()).scores(
        [RewardInput(GenerationInput.of([], long, ["One."])), RewardInput(GenerationInput.of([], "Who?", ["One."]))],
        ["key_entropy"],
    )
    assert "does not fit" in scores[0]["key_entropy"].error and scores[1]["key_entropy"].error is None
    turns = [Turn("a", (), long), Turn("b", (), "Who?")]
    options = RewriterSettings(n=3, max_new_tokens=6)
    none, some = sample_rewrites(lm, turns, options, RewritePrompt(), 1)
    assert not none.candidates and none.counts["too_long"] == 1 and some.candidates
    assert greedy_rewrites(lm, turns, options, RewritePrompt())[0] == long
