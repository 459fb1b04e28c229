"""The model that is trained: base with a new LoRA adapter, or with the SFT adapter and its frozen copy."""

import torch
from peft import PeftModel, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from core.errors import InputError, first_line
from core.gguf import model_folder
from core.language_model import load_language_model
from core.settings import Settings, rewriter_model
from train.options import lora_config

ADAPTER = "adapter"


def new_policy(settings: Settings) -> tuple[PeftModel, PreTrainedTokenizerBase]:
    """The base model with a trainable LoRA adapter: a fresh one, or `rewriter.adapter` to go on with."""
    torch.manual_seed(settings.run.seed)
    chosen = settings.rewriter
    lm = load_language_model(rewriter_model(settings), chosen.adapter, chosen.dtype, trainable=True)
    return (lm.model if chosen.adapter else with_lora(lm.model, settings)), lm.tokenizer


def with_lora(model: PreTrainedModel, settings: Settings) -> PeftModel:
    """The model with a fresh adapter.

    Raises:
        InputError: PEFT finds no place for it, or refuses a value of the `lora` section.
    """
    config = lora_config(settings)
    try:
        return get_peft_model(model, config)
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        raise InputError(f"`lora`: PEFT cannot add the adapter to {settings.rewriter.model}: {error}") from error


def check_lora(settings: Settings) -> None:
    """Try the `lora` section on the model's layers, without its weights, before anything is computed.

    Raises:
        InputError: the model cannot be read, or PEFT refuses.
    """
    if settings.rewriter.adapter:
        return
    folder = model_folder(rewriter_model(settings))
    try:
        config = AutoConfig.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise InputError(f"`rewriter.model`: {settings.rewriter.model} cannot be read: {first_line(error)}") from error
    with torch.device("meta"):
        with_lora(AutoModelForCausalLM.from_config(config), settings)


def warmed_policy(settings: Settings) -> tuple[PeftModel, PreTrainedTokenizerBase]:
    """The base model with the trainable SFT adapter; TRL adds the frozen copy that is the reference."""
    adapter = settings.run_dir / "sft" / ADAPTER
    lm = load_language_model(rewriter_model(settings), str(adapter), settings.rewriter.dtype, trainable=True)
    return lm.model, lm.tokenizer


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
