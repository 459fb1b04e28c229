"""Guesses of what follows: they save passes and change nothing."""

import math

import pytest
import torch

from core import decoding
from core.decoding import Decoded, decode, greedy
from core.guesses import Guesses
from core.language_model import load_language_model
from rewriter.sampling import sampler
from tests.conftest import ROOT

PROMPTS = [[7, 8, 9, 10, 7, 8], [11, 12, 13], [20, 21] * 9, [30], list(range(40, 80))]


def test_guesses_worked_by_hand():
    guesses = Guesses([1, 2, 3, 9, 2, 4, 1, 2])
    assert guesses.next(0) == [] == guesses.next(-1)
    assert guesses.next(3) == [3, 9, 2]  # after (1, 2), though 4 stood after the last 2
    guesses.add(5)
    assert guesses.next(3) == []  # 5 never stood before
    guesses.add(2)
    assert guesses.next(2) == [5, 2]  # (5, 2) never did, but 2
    guesses.add(2)
    assert guesses.next(4) == [2, 2, 2, 2]
    assert Guesses([6]).next(2) == []


def decoded(lm, monkeypatch, guessed: int, **given) -> tuple[list[Decoded], int]:
    """All sequences, and the number of passes."""
    passes = []
    monkeypatch.setattr(decoding, "GUESSED", guessed)
    hook = lm.model.register_forward_pre_hook(lambda *_: passes.append(1))
    made = decode(lm, PROMPTS, 12, **given)
    hook.remove()
    return [one for some in made for one in some], len(passes)


def same(one: Decoded, other: Decoded) -> bool:
    return (one.ids, one.ended) == (other.ids, other.ended) and all(
        math.isclose(a, b, abs_tol=1e-4)
        for a, b in zip(
            [*one.logprobs, *one.entropies, one.end_logprob],
            [*other.logprobs, *other.entropies, other.end_logprob],
            strict=True,
        )
    )


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0])
def test_with_guesses_as_without(lm, monkeypatch, temperature, samples):
    noise = torch.rand(len(PROMPTS) * samples, 12, generator=torch.Generator().manual_seed(1))
    pick = sampler(noise, temperature, 1.0) if temperature else greedy
    plain, passes = decoded(lm, monkeypatch, 0, pick=pick, samples=samples)
    assert max(len(one.ids) for one in plain) == 12
    for guessed in (1, 2, 5):
        made, fewer = decoded(lm, monkeypatch, guessed, pick=pick, samples=samples)
        assert all(map(same, plain, made))
        assert fewer <= passes


def test_what_repeats_takes_fewer_passes(lm, monkeypatch):
    """A pick that goes round in a ring of three tokens."""
    ring = {7: 8, 8: 9, 9: 7}

    def pick(logprobs, steps, numbers):
        return torch.tensor([list(ring)[(step + number) % 3] for step, number in zip(steps, numbers, strict=True)])

    plain, passes = decoded(lm, monkeypatch, 0, pick=pick)
    made, fewer = decoded(lm, monkeypatch, 2, pick=pick)
    assert all(map(same, plain, made))
    assert [len(one.ids) for one in made] == [12] * len(PROMPTS)
    assert passes - fewer >= 5  # three tokens one by one, then three a pass


def test_a_model_with_a_sliding_window_is_not_asked_to_go_back(monkeypatch):
    """Its window counts slots of the cache, so none may hold a wrong guess."""
    from transformers import MistralConfig, MistralForCausalLM

    tiny = load_language_model(str(ROOT / "configs/tiny-model"))
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=len(tiny.tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, sliding_window=16, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    lm = type(tiny)("mistral", MistralForCausalLM(config).eval(), tiny.tokenizer)
    plain, passes = decoded(lm, monkeypatch, 0)
    made, as_many = decoded(lm, monkeypatch, 2)
    assert all(map(same, plain, made)) and passes == as_many
    for prompt, one in zip(PROMPTS, made, strict=True):
        alone = lm.model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)[0, len(prompt) :]
        assert one.ids == [token for token in alone.tolist() if token not in lm.stop_ids]
