"""The training stages on a small batch of pairs: SFT learns the chosen rewrites, DPO prefers them."""

import json

import pytest
import torch
from torch.nn.functional import log_softmax

from core.errors import InputError
from core.model_spec import ModelSpec
from core.records import Pair
from core.settings import RewriterSettings, RunSettings, Settings
from core.stages import Stage, load_stage
from train.dpo_stage import train_dpo
from train.run import Run
from train.sft_stage import train_sft

CHOSEN = ("Where was Ann Lee born?", "When did Ann Lee die?", "Who made Port Verna?", "Where is Port Verna?")
REJECTED = ("Where was she born?", "When did Tom die?", "Who made it?", "Where?")
TRAINING = {"max_steps": 10, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1, "logging_steps": 1}


def message(role, text):
    return {"role": role, "content": text}


def run_with_pairs(folder, model, *more, **options):
    """A run with four pairs and further settings, and its `pairs` stage."""
    settings = Settings(run=RunSettings(dir=str(folder)), rewriter=RewriterSettings(model=str(model)), **options)
    pairs = Stage(settings.run.path, "round-1/pairs", {}, {}, Pair)
    pairs.write([*map(pair_of, (f"Question {i}" for i in range(4)), CHOSEN, REJECTED), *more])
    pairs.finish({"total": len(CHOSEN) + len(more)})
    return Run(settings, []), pairs


def pair_of(question, chosen, rejected):
    sides = [[message("assistant", chosen)], [message("assistant", rejected)]]
    return Pair(question, [message("user", question)], *sides, 1.0, 0.0, 1.0, "key_entropy")


@pytest.fixture(scope="module")
def trained(random_llama, tmp_path_factory):
    """A run with SFT and ten steps of DPO on four pairs."""
    options = {"sft": TRAINING | {"learning_rate": 3e-3}, "dpo": TRAINING | {"learning_rate": 1e-3, "beta": 0.1}}
    run, pairs = run_with_pairs(tmp_path_factory.mktemp("run"), random_llama, **options)
    train_sft(run, "round-1/sft", pairs)
    train_dpo(run, "round-1/dpo", {pairs.name: pairs}, load_stage(run.path, "round-1/sft"))
    return run.path


def logs(run, stage, key):
    return [entry[key] for entry in json.loads((run / stage / "log.json").read_text()) if key in entry]


def logprobs(model, run, stage, rewrites):
    """The log-probability of each rewrite, computed from the saved adapter."""
    lm = ModelSpec(model, str(run / stage / "adapter")).load()
    sums = []
    for i, rewrite in enumerate(rewrites):
        chat = [message("user", f"Question {i}")]
        prompt = lm.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        ids = lm.tokenizer.apply_chat_template([*chat, message("assistant", rewrite)], return_dict=False)
        with torch.no_grad():
            table = log_softmax(lm.model(torch.tensor([ids])).logits[0], -1)
        sums.append(sum(table[at - 1, ids[at]].item() for at in range(len(prompt), len(ids))))
    return torch.tensor(sums)


def test_sft_lowers_the_loss(trained):
    losses = logs(trained, "round-1/sft", "loss")
    assert len(losses) == 10 and losses[-1] < losses[0] - 0.5


def test_ten_steps_of_dpo_raise_the_margin(trained, random_llama):
    margins = logs(trained, "round-1/dpo", "rewards/margins")
    assert len(margins) == 10 and margins[0] == 0 and margins[-1] > 0.05
    # The same from the two saved adapters: beta * (change of the chosen - change of the rejected).
    changes = [
        logprobs(str(random_llama), trained, "round-1/dpo", rewrites)
        - logprobs(str(random_llama), trained, "round-1/sft", rewrites)
        for rewrites in (CHOSEN, REJECTED)
    ]
    margin = 0.1 * (changes[0] - changes[1]).mean().item()
    assert margin >= margins[-1] - 1e-3
    assert json.loads((trained / "round-1/dpo/manifest.json").read_text())["counts"]["steps"] == 10


def test_rows_without_a_token_left_by_max_length_are_dropped(random_llama, tmp_path):
    long = pair_of("Question " * 300, CHOSEN[0], REJECTED[0])
    options = TRAINING | {"max_steps": 2, "max_length": 250}
    run, pairs = run_with_pairs(tmp_path / "some", random_llama, long, sft=options)
    assert train_sft(run, "round-1/sft", pairs).manifest["counts"]["total"] == 4
    run, pairs = run_with_pairs(tmp_path / "none", random_llama, sft=options | {"max_length": 2})
    with pytest.raises(InputError, match="round-1/sft: `max_length` 2 truncates all completions entirely"):
        train_sft(run, "round-1/sft", pairs)
