"""Rewards by name: required labels, `weighted` by hand, Delta-SePer and answer probability against plain sums."""

import math
from dataclasses import fields, replace
from typing import get_args

import pytest
import torch

from core.chat import completion_ids
from core.errors import InputError
from core.records import GenerationInput, RewardInput, Score, Turn
from core.scoring_settings import Reward, RewardSettings, ScoringSettings
from core.settings import GeneratorSettings
from scoring.combine import combine, z_scores
from scoring.entailment import ExactMatch
from scoring.generator import Generator
from scoring.registry import REWARDS, check_labels, component_rewards
from scoring.scorer import Scorer, check_scoring
from tests.oracle import prompt_of

DOCUMENTS = ("Talpa was born in Port Verna.", "A lake by the sea.")
ITEM = RewardInput(GenerationInput((), "Where was Talpa born?", DOCUMENTS), (True, False), ("Port Verna",), (2.0, 1.0))


def test_labels_that_are_missing_are_counted():
    turns = [Turn("a", (), "q", answers=("x",)), Turn("b", (), "q", relevant={"d": 1}), Turn("c", (), "q")]
    with pytest.raises(InputError, match="`udcg` needs `relevant` in every turn; 2 of 3 turns of f.jsonl"):
        check_labels(turns, ScoringSettings(reward="udcg"), "f.jsonl")
    with pytest.raises(InputError, match="`answer_logprob` needs `answers`"):
        check_labels(turns, ScoringSettings(reward="weighted", weights={"ppl": 1, "answer_logprob": 1}), "f.jsonl")
    check_labels(turns, ScoringSettings(), "f.jsonl")


def test_models_that_cannot_be_read_are_named(random_llama):
    with pytest.raises(InputError, match="`generator.model`: ./nowhere cannot be read"):
        check_scoring([], ScoringSettings(), "./nowhere")
    seper = ScoringSettings(reward="delta_seper_soft", entailment="./nowhere")
    with pytest.raises(InputError, match="`scoring.entailment`: ./nowhere cannot be read.*`exact` needs no model"):
        check_scoring([], seper, str(random_llama))
    check_scoring([], replace(seper, entailment="exact"), str(random_llama))
    check_scoring([], ScoringSettings(reward="reciprocal_rank"), "./nowhere")  # needs no generator
    with pytest.raises(InputError, match="`rewriter.model`: ./nowhere cannot be read"):
        check_scoring([], ScoringSettings(), "./nowhere", GeneratorSettings().model_key)


def test_weights_are_checked():
    with pytest.raises(InputError, match="needs `scoring.weights`"):
        component_rewards(ScoringSettings(reward="weighted"))
    with pytest.raises(InputError, match="did you mean `key_entropy`"):
        component_rewards(ScoringSettings(reward="weighted", weights={"key_entropi": 1.0}))


def test_weighted_by_hand():
    assert z_scores([1.0, 3.0, None]) == [-1.0, 1.0, None]
    assert z_scores([2.0, 2.0]) == [0.0, 0.0]
    parts = [{"ppl": 1.0, "udcg": 10.0}, {"ppl": 3.0, "udcg": 0.0}, {"ppl": None, "udcg": 5.0}]
    scores = [
        {name: Score(value, error="why" if value is None else None) for name, value in part.items()} for part in parts
    ]
    combined = combine(scores, ScoringSettings(reward="weighted", weights={"ppl": 2.0, "udcg": 1.0}))
    # ppl: -1, 1; udcg: mean 5, deviation sqrt(50/3)
    udcg = 5 / math.sqrt(50 / 3)
    assert [score.value for score in combined] == [pytest.approx(-2 + udcg), pytest.approx(2 - udcg), None]
    assert [score.error for score in combined] == [None, None, "why"]
    assert [score.parts for score in combined] == parts


def test_the_settings_have_every_reward_by_name():
    assert tuple(REWARDS) == get_args(Reward)
    names = {field.name for field in fields(RewardSettings)} - {"reward"}
    assert {name for reward in REWARDS.values() for name in reward.settings} == names


def test_every_reward_gives_a_number(lm):
    scorer = Scorer(Generator(lm, 6, 400), ScoringSettings(samples=3, sample_tokens=6), ExactMatch(), 1)
    first, second = scorer.scores([ITEM, ITEM], list(REWARDS))
    assert first == second and all(math.isfinite(first[name].value) for name in REWARDS)
    assert first["reciprocal_rank"].value == 1.0


def test_without_documents_there_is_a_reason(lm):
    scorer = Scorer(Generator(lm, 4, 400), ScoringSettings(samples=2, sample_tokens=4), ExactMatch(), 1)
    bare = RewardInput(GenerationInput((), "Where?", ()), (), ("Port Verna",))
    for score in scorer.scores([bare], list(REWARDS))[0].values():
        assert score.value is None and score.error == "no documents retrieved"


def test_answer_logprob_equals_a_plain_sum(lm):
    answer, expected = completion_ids(lm, "Port Verna"), 0.0
    weights = torch.tensor([2.0, 1.0]).softmax(0)
    for weight, document in zip(weights, DOCUMENTS, strict=True):
        prompt, _ = prompt_of(lm, GenerationInput((), ITEM.generation_input.question, (document,)), 6)
        with torch.no_grad():
            p = lm.model(torch.tensor([prompt + answer])).logits[0].softmax(-1)
        steps = [float(p[len(prompt) - 1 + i, token]) for i, token in enumerate(answer)]
        expected += float(weight) * math.prod(steps)
    (scores,) = Scorer(Generator(lm, 6, 400), ScoringSettings()).scores([ITEM], ["answer_logprob"])
    assert scores["answer_logprob"].value == pytest.approx(math.log(expected), abs=1e-3)


class RecordingMatch(ExactMatch):
    """Exact match that records the pairs it compares."""

    def __init__(self):
        self.pairs = []

    def judge(self, pairs):
        self.pairs += pairs
        return super().judge(pairs)


def test_samples_of_seper_depend_only_on_seed_and_input(lm):
    other = RewardInput(GenerationInput((), "Who made it?", ("Ann Lee made it.",)), answers=("Ann Lee",))

    def sampled(inputs, seed):
        entailment = RecordingMatch()
        scorer = Scorer(Generator(lm, 6, 10_000), ScoringSettings(samples=4, sample_tokens=6), entailment, seed)
        scorer.scores(inputs, ["delta_seper_soft"])
        return {pair for pair in entailment.pairs if ITEM.generation_input.question in pair[0]}

    assert sampled([ITEM], 1) == sampled([other, ITEM], 1) != sampled([ITEM], 2)


def test_logged_replies_are_scored_and_others_fall_back(lm):
    """`scoring.answer: logged` uses the start of the reply, or `generated` if the reply is empty or abstains."""
    replies = ("Talpa was born in Port Verna, by the sea.", "", "I'm sorry, I do not know.")
    items = [replace(ITEM, reply=reply) for reply in replies]
    generator = Generator(lm, 6, 400)
    scores = [
        score["key_entropy"]
        for score in Scorer(generator, ScoringSettings(answer="logged", reply_tokens=5)).scores(items, ["key_entropy"])
    ]
    assert [score.answer_source for score in scores] == ["logged", "generated", "generated"]
    assert len(scores[0].stats.tokens) == 5 and replies[0].startswith(scores[0].answer)
    generated = Scorer(generator, ScoringSettings()).scores(items[:1], ["key_entropy"])[0]["key_entropy"]
    assert generated.answer_source == "generated" and generated == scores[1] == scores[2]
