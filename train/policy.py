"""The model that is trained: base with a new LoRA adapter, or with the SFT adapter and its frozen copy."""

import torch
from peft import PeftModel, get_peft_model
from transformers import PreTrainedTokenizerBase

from core.errors import InputError
from core.language_model import load_language_model
from core.settings import Settings
from train.options import lora_config

ADAPTER = "adapter"


def new_policy(settings: Settings) -> tuple[PeftModel, PreTrainedTokenizerBase]:
    """The base model with a trainable LoRA adapter: a fresh one, or `rewriter.adapter` to go on with."""
    torch.manual_seed(settings.run.seed)
    lm = load_language_model(settings.rewriter.model, None, settings.rewriter.dtype)
    if settings.rewriter.adapter:
        return PeftModel.from_pretrained(lm.model, settings.rewriter.adapter, is_trainable=True), lm.tokenizer
    return get_peft_model(lm.model, lora_config(settings)), lm.tokenizer


def warmed_policy(settings: Settings) -> tuple[PeftModel, PreTrainedTokenizerBase]:
    """The base model with the trainable SFT adapter; TRL adds the frozen copy that is the reference."""
    lm = load_language_model(settings.rewriter.model, None, settings.rewriter.dtype)
    adapter = settings.run_dir / "sft" / ADAPTER
    return PeftModel.from_pretrained(lm.model, str(adapter), is_trainable=True), lm.tokenizer


def check_reference(model: PeftModel) -> None:
    """Make sure that the reference adapter is a frozen copy of the policy's.

    Raises:
        InputError: it is missing, trainable or different; names the first such weight.
    """
    weights = dict(model.named_parameters())
    policy = {name: weight for name, weight in weights.items() if ".default." in name}
    for name, weight in policy.items():
        copy = weights.get(name.replace(".default.", ".ref."))
        if copy is None or copy.requires_grad or not torch.equal(copy, weight):
            raise InputError(
                f"the reference is no frozen copy of the SFT adapter (`{name}`); check the versions of trl and peft."
            )
    if not policy:
        raise InputError("the policy has no adapter weights; check `lora.target_modules`.")
