"""Extensions of TRL's trainers: the SFT loss on a CPU, the order of batches, checks, checkpoints."""

from statistics import fmean

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import TrainerState
from trl import DPOConfig, SFTConfig, SFTTrainer

from core.errors import InputError
from core.language_model import load_language_model
from train.adapter_training import last_checkpoint, remove_unusable_checkpoints
from train.callbacks import ZeroMarginCallback
from train.trainers import GroupedSFTTrainer, LengthGroupedSampler

ROWS = [
    {"prompt": [{"role": "user", "content": prompt}], "completion": [{"role": "assistant", "content": completion}]}
    for prompt, completion in [
        ("User: Who made it?", "Who made the lake by the sea?"),
        ("User: Who made it?\nAssistant: Ann Lee\nUser: And where was she born?", "Where was Ann Lee born?"),
        ("Where?", "Where is Port Verna?"),
    ]
]


@pytest.mark.parametrize("num_items", [None, 40])
def test_the_loss_and_its_gradient_equal_trls(random_llama, tmp_path, num_items):
    losses, gradients = [], []
    for kind in (SFTTrainer, GroupedSFTTrainer):
        lm = load_language_model(str(random_llama), trainable=True)
        torch.manual_seed(0)
        model = get_peft_model(lm.model, LoraConfig(target_modules="all-linear", init_lora_weights=False))
        config = SFTConfig(
            str(tmp_path), use_cpu=True, report_to="none", per_device_train_batch_size=3, max_length=None
        )
        trainer = kind(model=model, args=config, train_dataset=Dataset.from_list(ROWS), processing_class=lm.tokenizer)
        batch = next(iter(trainer.get_train_dataloader()))
        loss = trainer.compute_loss(trainer.model, batch, num_items_in_batch=num_items)
        loss.backward()
        losses.append(loss.item())
        gradients.append(torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert torch.allclose(*gradients, atol=1e-6, rtol=1e-3) and gradients[0].abs().max() > 0


def test_batches_have_rows_of_similar_length_in_an_order_of_seed_and_epoch():
    lengths = [row % 50 for row in range(1003)]

    def order(seed, epoch):
        sampler = LengthGroupedSampler(lengths, 10, seed)
        sampler.set_epoch(epoch)
        torch.rand(seed + epoch)  # the random state of the process has no effect
        return list(sampler)

    assert order(1, 0) == order(1, 0) and len({tuple(order(*key)) for key in ((1, 0), (1, 1), (2, 0))}) == 3
    rows = order(1, 0)
    assert sorted(rows) == list(range(1003))
    *batches, last = ([lengths[row] for row in rows[start : start + 10]] for start in range(0, 1003, 10))
    assert fmean(max(batch) - min(batch) for batch in batches) < 5 and len(last) == 3


@pytest.mark.parametrize(
    ("weights", "bf16", "tolerated"),
    [(torch.float32, False, 1e-5), (torch.float32, True, 0.02), (torch.bfloat16, False, 0.02)],
)
def test_policy_and_reference_must_start_equal(tmp_path, weights, bf16, tolerated):
    model, config = torch.nn.Linear(1, 1, dtype=weights), DPOConfig(str(tmp_path), use_cpu=True, bf16=False)
    config.bf16 = bf16

    def log(step=1, **logs):
        callback = ZeroMarginCallback("round-1/dpo")
        callback.on_log(config, TrainerState(global_step=step), None, logs=logs, model=model)

    with pytest.raises(InputError, match="the reward margin is 0.1 at step 0, must be 0"):
        log(**{"rewards/margins": 0.1})
    log(loss=1.0)
    log(**{"rewards/margins": tolerated})
    log(step=2, **{"rewards/margins": 0.1})  # later margins may grow


def test_the_newest_complete_checkpoint_of_this_number_of_processes(tmp_path):
    assert last_checkpoint(tmp_path) is None
    for step in (4, 10, 11, 12, 13, 14):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        torch.save(torch.get_rng_state(), folder / "rng_state.pth")
        if step != 11:  # `trainer_state.json` is written last
            (folder / "trainer_state.json").write_text("" if step == 12 else "{}")  # the disk was full
    (tmp_path / "checkpoint-13/rng_state.pth").write_bytes(b"PK half a file")
    (tmp_path / "checkpoint-14/rng_state.pth").rename(tmp_path / "checkpoint-14/rng_state_0.pth")  # several processes
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10")
    remove_unusable_checkpoints(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-4", "checkpoint-10"}
