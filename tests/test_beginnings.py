"""Prompts that begin alike: each token is read once, and the results are those of prompts read alone."""

import copy
import math
import random
from dataclasses import replace

import pytest
import torch

from core.beginnings import Row, agreement, alike, passes_of
from core.decoding import score_continuations
from scoring.generator import Reading, answer_all, prompt_of


def test_a_plan_worked_by_hand():
    a = list(range(40))
    b = [*range(20), *range(50, 80)]  # 20 tokens as a
    c = [*range(20), *range(50, 70), *range(80, 100)]  # 40 tokens as b
    d = [*range(20), *range(50, 70), *range(80, 90), 7]  # 50 as c, 40 as b: too few more to wait for c
    e = [7, *range(60)]  # begins otherwise
    passes = passes_of([a, b, c, d, e], 1000)
    assert [one.rows for one in passes] == [
        (Row(4, 4, 0), Row(0, 0, 0)),
        (Row(1, 0, 20),),
        (Row(2, 1, 40), Row(3, 1, 40)),
    ]
    assert [(one.before, one.tokens) for one in passes] == [(0, 61), (20, 30), (40, 20)]


def test_prompts_in_one_pass_go_on_from_one_slot():
    a, b, c = list(range(60)), list(range(100, 160)), list(range(200, 300))
    prompts = [a, a[:30] + [99] * 10, b, b[:50] + [999] * 10, c, c[:90] + [9999] * 10]
    first, near, far = passes_of(prompts, 1000)
    assert {row.prompt for row in first.rows} == {0, 2, 4}
    assert (near.before, near.tokens, {row.prompt for row in near.rows}) == (30, 30, {1, 3})
    assert (far.before, far.tokens, far.rows) == (90, 10, (Row(5, 4, 90),))


@pytest.mark.parametrize("seed", range(20))
def test_every_token_of_any_prompts_is_read(seed):
    rng = random.Random(seed)
    prompts: list[list[int]] = [[rng.randrange(9) for _ in range(rng.randint(1, 90))]]
    for _ in range(40):
        kept = rng.choice(prompts)[: rng.randint(0, 90)]
        prompts.append(kept + [rng.randrange(9) for _ in range(rng.randint(1, 60))])
    passes = passes_of(prompts, 300)
    rows = [row for one in passes for row in one.rows]
    assert sorted(row.prompt for row in rows) == list(range(len(prompts)))
    read: set[int] = set()
    for one in passes:
        assert one.before == min(row.start for row in one.rows)
        assert one.tokens == max(len(prompts[row.prompt]) for row in one.rows) - one.before
        for row in one.rows:
            assert row.start == 0 or row.source in read
            assert row.start < len(prompts[row.prompt])
            assert prompts[row.prompt][: row.start] == prompts[row.source][: row.start]
        read |= {row.prompt for row in one.rows}
    given = sum(len(prompts[row.prompt]) - one.before for one in passes for row in one.rows)
    assert given < 0.95 * sum(map(len, prompts))


def test_agreement_and_order():
    assert [agreement([1, 2, 3], other) for other in ([], [1], [1, 2, 4, 5], [1, 2, 3], [2])] == [0, 1, 2, 3, 0]
    assert alike([[3], [1, 2], [1], [3, 0]]) == [2, 1, 0, 3]


def test_documents_in_common_are_read_once(lm, monkeypatch):
    """Eight lists that differ in their last document alone."""
    first = ["Talpa was born in Port Verna, by the sea. " * 3, "The lake of Hesta is deep and cold. " * 3]
    readings = [Reading.of([], "Where was Talpa born?", [*first, f"Number {i} was made in Ankara."]) for i in range(8)]
    alone = [answer_all(lm, [reading], 8, 1)[0] for reading in readings]
    given = []
    hook = lm.model.register_forward_pre_hook(
        lambda module, args, kwargs: given.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    together = answer_all(lm, readings, 8, 100_000)
    hook.remove()
    whole = sum(len(prompt_of(lm, reading, 8)[0]) for reading in readings)
    assert sum(given) < 0.5 * whole
    for one, other in zip(alone, together, strict=True):
        assert one.answer == other.answer
        assert one.stats.h0 == pytest.approx(other.stats.h0, abs=1e-4)
        assert one.stats.hd == pytest.approx(other.stats.hd, abs=1e-4)


def test_a_token_that_is_not_a_number_spoils_no_prompt_that_begins_alike(lm):
    spoilt = replace(lm, model=copy.deepcopy(lm.model))
    spoilt.model.get_input_embeddings().register_forward_hook(
        lambda module, inputs, out: torch.where(inputs[0][..., None] == 20, torch.nan, out)
    )
    common = list(range(100, 160))  # the other goes on from the spoilt one, which comes first in the order of ids
    prompts, replies = [[*common, 20, *range(200, 240)], [*common, *range(250, 280)]], [[[7, 8]], [[7, 8]]]
    (bad,), (good,) = score_continuations(spoilt, prompts, replies)
    ((alone,),) = score_continuations(spoilt, prompts[1:], replies[1:])
    assert all(map(math.isnan, bad.logprobs))
    assert good.logprobs == pytest.approx(alone.logprobs, abs=1e-4)


def test_continuations_come_back_in_the_order_of_their_prompts(lm):
    rng = random.Random(4)
    common = [rng.randrange(5, 600) for _ in range(50)]
    prompts = [
        common[: rng.choice([0, 20, 50])] + [rng.randrange(5, 600) for _ in range(rng.randint(1, 40))]
        for _ in range(12)
    ]
    prompts += [prompts[0], prompts[3], [5, 6], [5, 6, 7]]  # of some, one token alone is new
    replies = [
        [[rng.randrange(5, 600) for _ in range(rng.randint(1, 6))] for _ in range(rng.randint(1, 3))] for _ in prompts
    ]
    together = score_continuations(lm, prompts, replies)
    for prompt, wanted, found in zip(prompts, replies, together, strict=True):
        (alone,) = score_continuations(lm, [prompt], [wanted])
        for one, other, reply in zip(alone, found, wanted, strict=True):
            assert other.ids == reply
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
            assert one.entropies == pytest.approx(other.entropies, abs=1e-4)
