"""The tiny model's training: the tree mask changes nothing, the loss falls, and a stopped training ends the same."""

import json
import random
import sys

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import ROOT, finish
from train.tiny_lessons import (
    CHAT_TEMPLATE,
    collate,
    encode,
    pieces_of,
    reading,
    recall,
    records,
    render,
    rewriting,
    telling_apart,
)
from train.tiny_model import RECALL, Trainer, new_model, orthogonal
from train.tiny_tokenizer import make_tokenizer


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
        made.level = RECALL + 1
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


def test_two_processes_train_together(tmp_path):
    words = [sys.executable, "-m", "train.tiny_model", "--out", str(tmp_path / "m"), "--steps", "3", "--workers", "2"]
    finish(words)
    made = json.loads((tmp_path / "m/training.json").read_text())
    assert made["processes"] == 2 and made["tokens"] > 0
    assert (tmp_path / "m/model.safetensors").exists() and not (tmp_path / "m/checkpoint.safetensors").exists()


def test_more_of_the_last_lessons(tmp_path):
    """They begin where the shipped model's training ended, and leave its tokenizer as it is."""
    shipped, words = ROOT / "configs/tiny-model", [sys.executable, "-m", "train.tiny_model", "--steps", "2"]
    words += ["--more_of", str(shipped), "--batch", "4", "--workers", "1"]
    finish([*words, "--out", str(tmp_path)])
    finish([*words, "--out", str(tmp_path / "half"), "--keep", "0.5"])
    before, made = (json.loads((folder / "training.json").read_text()) for folder in (shipped, tmp_path))
    assert made["before"] == before and made["steps"] == before["steps"] + 2 and made["tokens"] > before["tokens"]
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        assert (tmp_path / name).read_text() == (shipped / name).read_text()
    old, new, half = (load_file(f / "model.safetensors") for f in (shipped, tmp_path, tmp_path / "half"))
    assert 0 < max(float((new[name].float() - old[name].float()).abs().max()) for name in old) < 0.01
    for name in old:
        assert torch.allclose(half[name].float(), (old[name].float() + new[name].float()) / 2, atol=1e-4, rtol=1e-3)


def test_a_record_holds_the_value_of_its_name(tokenizer):
    pieces, marker = pieces_of(tokenizer), tokenizer.convert_tokens_to_ids("<|assistant|>")
    assert all(pieces) and not set(pieces[3]) & {*pieces[0], *pieces[1], *pieces[2]}
    for seed in range(20):
        for prompt, target in records(random.Random(seed), pieces, 0, marker):
            assert prompt[-1] == marker
            wanted = prompt[-3:-1] + target
            assert any(prompt[i : i + len(wanted)] == wanted for i in range(len(prompt)))


def documents_of(branch):
    """The documents of a prompt."""
    return next(p for p in branch.messages[-1]["content"].split("\n\n") if p.startswith("Documents:"))


def test_lessons_whose_answers_are_told_hold_them():
    for seed in range(20):
        told = [*recall(random.Random(seed), "lm"), *telling_apart(random.Random(seed), "lm", 3, told=1.0)]
        assert all(branch.target in documents_of(branch) for branch in told)


def test_most_documents_state_the_thing_of_others():
    """In `telling_apart` the same attribute is stated by several documents, so words alone do not answer."""
    from train.tiny_world import grammar

    crowded = 0
    for seed in range(40):
        documents = documents_of(telling_apart(random.Random(seed), "lm")[0]).split("\n")[1:]
        stems = [
            says.split("{v}")[0].replace("{e}", "").replace("{p}", "").strip()
            for kind in grammar()["kinds"].values()
            for spec in kind["attributes"].values()
            for says in spec["says"]
        ]
        crowded += max(sum(stem in document for document in documents) for stem in stems if stem) >= 2
    assert crowded >= 20
