"""The tiny model's training: packed episodes equal separate prompts, the loss falls, and it resumes exactly."""

import json
import random
import sys

import pytest
import torch

from tests.conftest import finish, small_tokenizer
from train.tiny.curriculum import LEVELS, records, token_sets
from train.tiny.entities import ATTRIBUTES
from train.tiny.lessons import distractor_reading, reading, recall
from train.tiny.model import new_model, orthogonalize
from train.tiny.packing import collate, pack
from train.tiny.tokenizer import encode
from train.tiny.trainer import Trainer


def test_branches_on_a_shared_prefix_equal_separate_prompts():
    model = new_model(small_tokenizer(), 0, width=64, layers=2)
    episode = encode(small_tokenizer(), reading(random.Random(4), "lm", 2, answerable=0.5))
    assert len(episode) > 2
    inputs, targets = collate([pack(episode)])
    together = model(**inputs).logits[0][targets["is_target"][0] > 0]
    separate = [model(torch.tensor([prompt + target])).logits[0, len(prompt) - 1 : -1] for prompt, target in episode]
    assert torch.allclose(together, torch.cat(separate), atol=1e-4)


def test_orthogonalize_pushes_singular_values_towards_one():
    values = torch.linalg.svdvals(orthogonalize(torch.randn(48, 16, generator=torch.Generator().manual_seed(0))))
    assert values.min() > 0.6 and values.max() < 1.3


def test_the_loss_falls_and_an_interrupted_training_ends_the_same(tmp_path):
    whole, resumed = (Trainer(tmp_path, seed=0, steps=16, batch=2, lr=5e-3) for _ in range(2))
    whole.level = next(i for i, level in enumerate(LEVELS) if level.documents)
    losses = [whole.step() for _ in range(7)]
    whole.save_checkpoint()
    losses += [whole.step() for _ in range(9)]
    assert sum(losses[-4:]) / 4 < sum(losses[:4]) / 4 - 0.2
    resumed.load_checkpoint()
    assert resumed.step_number == 7 and resumed.level == whole.level
    assert [resumed.step() for _ in range(9)] == losses[7:]


@pytest.mark.slow
def test_two_processes_train_together(tmp_path):
    out = tmp_path / "m"
    finish([sys.executable, "-m", "train.tiny.pretrain", "--out", out, "--steps", "3", "--workers", "2"])
    training = json.loads((out / "training.json").read_text())
    assert training["processes"] == 2 and training["tokens"] > 0
    assert (out / "model.safetensors").exists() and not (out / "checkpoint.pt").exists()


def test_a_record_has_the_value_of_its_key():
    tokenizer = small_tokenizer()
    tokens, marker = token_sets(tokenizer), tokenizer.convert_tokens_to_ids("<|assistant|>")
    assert all(tokens) and not set(tokens[3]) & {*tokens[0], *tokens[1], *tokens[2]}
    for seed in range(20):
        for prompt, target in records(random.Random(seed), tokens, 0, marker):
            assert prompt[-1] == marker
            record = prompt[-3:-1] + target
            assert any(prompt[i : i + len(record)] == record for i in range(len(prompt) - 3))


def documents_of(branch):
    messages, _ = branch
    return next(part for part in messages[-1]["content"].split("\n\n") if part.startswith("Documents:"))


def test_answerable_questions_are_answered_by_a_document():
    for seed in range(20):
        episodes = recall(random.Random(seed), "lm"), distractor_reading(random.Random(seed), "lm", 3, answerable=1.0)
        for episode in episodes:
            assert episode and all(branch[1] in documents_of(branch) for branch in episode)


def test_most_documents_state_the_same_attribute_of_others():
    """Several documents of `distractor_reading` state the requested attribute, so matching words is not enough."""
    stems = [
        statement.split("{v}")[0].replace("{e}", "").replace("{p}", "").strip()
        for attribute in ATTRIBUTES
        for statement in attribute["says"]
    ]
    crowded = 0
    for seed in range(40):
        episode = distractor_reading(random.Random(seed), "lm", 3, answerable=0.5)
        documents = documents_of(episode[0]).split("\n")[1:]
        crowded += max(sum(stem in document for document in documents) for stem in stems if stem) >= 2
    assert crowded >= 20
