"""The fast passes equal the plain oracle on every family of models."""

import logging

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, MambaConfig, MptConfig

from core.chat import completion_ids
from core.errors import InputError
from core.generation import generate, score_completions
from core.language_model import load_language_model, load_tokenizer
from core.progress import log
from core.records import RewardInput
from core.sampling import greedy, sampler
from core.scoring_settings import ScoringSettings
from scoring.generator import Generator
from scoring.scorer import Scorer
from tests.families import FAMILIES, READINGS, SIZES, family
from tests.oracle import assert_same_stats, plain_logged_scores, plain_no_res, plain_scores, prompt_of


@pytest.fixture(scope="module", params=FAMILIES)
def small(request):
    """A random model of each family."""
    return family(request.param)


def test_equals_the_oracle_alone_and_together(small):
    fast, untouched = Generator(small, 8, 250).answers(READINGS), family(small.name)
    for reading, answer in zip(READINGS, fast, strict=True):
        assert_same_stats(answer.stats, plain_scores(Generator(untouched, 8, 1000), reading))
        assert_same_stats(answer.stats, Generator(small, 8, 1).answers([reading])[0].stats)


def test_prompts_have_at_most_one_bos_and_the_question(small):
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


MAMBA = MambaConfig(hidden_size=32, num_hidden_layers=2, state_size=4)
MPT = MptConfig(d_model=32, n_heads=2, n_layers=2)
REFUSED = [
    (MAMBA, "`mamba` model keeps a recurrent state"),
    (MPT, "outputs of a `mpt` model for a prompt change in a batch"),
]


@pytest.mark.parametrize(("config", "why"), REFUSED)
def test_a_model_that_cannot_read_prompts_together_is_refused(random_llama, tmp_path, config, why):
    load_tokenizer(str(random_llama)).save_pretrained(tmp_path)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=why):
        load_language_model(str(tmp_path))


def test_length_dependent_rope_gives_a_warning(random_llama, tmp_path, caplog):
    load_tokenizer(str(random_llama)).save_pretrained(tmp_path)
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    sizes = SIZES | {"max_position_embeddings": 128, "vocab_size": 600}
    LlamaForCausalLM(LlamaConfig(**sizes, rope_parameters=rope)).save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING, logger=log.name):
        load_language_model(str(tmp_path))
    assert "RoPE scaling `dynamic` depends on the" in caplog.text and "keep prompts to 128 tokens" in caplog.text


def test_logged_scores_equal_teacher_forcing_alone(small):
    """`scoring.answer: logged`: one prefix for all document lists of a turn, and for the prompt without documents."""
    reply, generator = completion_ids(small, "She was born by the sea, in Port Verna."), Generator(small, 8, 10_000)
    for reading, scored in zip(
        READINGS, generator.logged_answers([(each, tuple(reply)) for each in READINGS]), strict=True
    ):
        assert_same_stats(scored.stats, plain_logged_scores(generator, reading, reply))


@torch.no_grad()
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_samples_of_one_prompt_are_those_of_separate_prompts(small, temperature):
    """With and without 4D masks and in any batch, samples equal those of `sampler` for one prompt at a time."""
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
                token = int(choose(logprobs, step, number))
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
        for item, scores in zip(items, judge.scores(items, ["udcg"]), strict=True):
            plain = plain_no_res(untouched, item.generation_input, completion_ids(small, "NO-RESPONSE"), abstention)
            assert scores["udcg"].no_res == pytest.approx(plain, rel=1e-3, abs=1e-9)


@pytest.mark.parametrize("kind", ["qwen2", "gemma2"])
def test_bfloat16(kind):
    lm = family(kind, torch.bfloat16)
    reply, generator = completion_ids(lm, "She was born by the sea."), Generator(lm, 8, 1000)
    for reading, scored in zip(
        READINGS, generator.logged_answers([(each, tuple(reply)) for each in READINGS]), strict=True
    ):
        assert_same_stats(scored.stats, plain_logged_scores(generator, reading, reply), tolerance=0.1)
