"""The trainers around TRL's: the SFT loss on a CPU equals TRL's own."""

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from trl import SFTConfig, SFTTrainer

from core.language_model import load_language_model
from train.trainers import with_completion_logits

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
    for kind in (SFTTrainer, with_completion_logits(SFTTrainer)):
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
