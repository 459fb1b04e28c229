"""The tiny model's training: the tree mask changes nothing, the loss falls, and a stopped training ends the same."""

import random

import pytest
import torch

from train.tiny_lessons import CHAT_TEMPLATE, collate, encode, make_tokenizer, reading, render, rewriting
from train.tiny_model import Trainer, new_model, orthogonal


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer(0, size=600, episodes=60)


def test_render_is_the_chat_template(tokenizer):
    assert tokenizer.chat_template == CHAT_TEMPLATE
    messages = rewriting(random.Random(1), "lm")[0].messages
    assert render(messages) == tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def test_branches_on_a_shared_prefix_equal_separate_prompts(tokenizer):
    model = new_model(tokenizer, 0, width=64, layers=2)
    group = encode(tokenizer, reading(random.Random(4), "lm", 2))
    together = collate([group], tokenizer.pad_token_id)
    logits = model(
        input_ids=together["input_ids"], position_ids=together["position_ids"], attention_mask=together["mask"]
    ).logits[0][together["output"][0] > 0]
    apart = []
    for prompt, target in group:
        alone = model(torch.tensor([prompt + target])).logits[0, len(prompt) - 1 : -1]
        apart.append(alone)
    # output positions are those whose next token belongs to the target
    assert logits.shape == torch.cat(apart).shape
    assert torch.allclose(logits, torch.cat(apart), atol=1e-4)


def test_orthogonal_pushes_singular_values_towards_one():
    values = torch.linalg.svdvals(orthogonal(torch.randn(48, 16, generator=torch.Generator().manual_seed(0))))
    assert values.min() > 0.6 and values.max() < 1.3


def test_the_loss_falls_and_a_stopped_training_ends_the_same(tmp_path):
    def trainer(folder):
        made = Trainer(tmp_path / folder, seed=0, steps=16, batch=2, lr=5e-3)
        made.level = 1
        return made

    whole = trainer("a")
    losses = [whole.step() for _ in range(16)]
    assert sum(losses[-4:]) / 4 < sum(losses[:4]) / 4 - 0.2
    first = trainer("b")
    first.out.mkdir()
    for _ in range(7):
        first.step()
    first.save_checkpoint()
    second = trainer("b")
    second.load_checkpoint()
    assert second.step_number == 7
    assert [second.step() for _ in range(9)] == losses[7:]
