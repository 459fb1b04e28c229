"""Causal language models: loading, and checks that a model can be used."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

import torch
from peft import PeftModel, prepare_model_for_kbit_training
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    DynamicCache,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.cache_utils import DynamicLayer, LinearAttentionLayer

from core.adapters import LOADING_ERRORS, check_adapter
from core.distributed import process
from core.errors import InputError, first_line
from core.gguf import model_folder
from core.progress import log

# For tokenizers without a chat template. A reply starts with a space, so that the prompt's tokens stay a prefix.
PLAIN_TEMPLATE = (
    "{{ bos_token or '' }}{% for m in messages %}"
    "{% if m['role'] == 'assistant' %}{{ 'Reply: ' + m['content'] + eos_token }}"
    "{% else %}{{ m['content'] + '\n\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Reply:' }}{% endif %}"
)
NO_THINKING = "{%- set enable_thinking = false -%}"  # prepended to the templates of Qwen3, GLM 4.5 and others
COUNTS_PADDING = ("mpt", "gpt_neo")  # padding counts as distance between tokens, in ALiBi or a local window


@dataclass
class LanguageModel:
    """A causal LM with its tokenizer.

    `name` is the name in the settings. `batch_limit` is the maximum tokens of a batch that fit in memory, set after a
    larger batch did not.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    batch_limit: int | None = None

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def context(self) -> int:
        """Maximum length of a sequence, in tokens."""
        config = self.model.config.get_text_config()
        return getattr(config, "max_position_embeddings", None) or 1 << 20

    @property
    def sliding_window(self) -> int | None:
        """The shortest attention window of a layer, in tokens; None if every layer sees all tokens."""
        layers = DynamicCache(config=self.model.config).layers
        return min((layer.sliding_window for layer in layers if layer.is_sliding), default=None)

    @cached_property
    def takes_4d_masks(self) -> bool:
        """Whether the model follows a 4D attention mask, tested on three tokens: the third continues the first and
        must not see the second."""
        if self.sliding_window is not None:
            return False
        mask = torch.zeros(1, 1, 3, 3, dtype=self.model.dtype, device=self.device)
        mask[0, 0, [0, 0, 1, 2], [1, 2, 2, 1]] = torch.finfo(mask.dtype).min
        special = set(self.tokenizer.all_special_ids)
        first, second, third = [token for token in range(len(special) + 3) if token not in special][:3]
        positions = torch.tensor([[0, 1, 1]], device=self.device)
        three, two = (torch.tensor([ids], device=self.device) for ids in ([first, second, third], [first, third]))
        with torch.inference_mode():
            try:
                masked = self.model(input_ids=three, attention_mask=mask, position_ids=positions)
            except (RuntimeError, ValueError, TypeError, IndexError):
                return False
            plain = self.model(input_ids=two)
        masked, plain = (output.logits[0, -1].float().softmax(-1) for output in (masked, plain))
        return (masked - plain).abs().sum().item() < (1e-3 if self.model.dtype == torch.float32 else 0.1)

    @property
    def stop_ids(self) -> list[int]:
        """Tokens that end a turn."""
        return stop_ids_of(self.model, self.tokenizer)

    @contextmanager
    def using(self, adapter: str | None) -> Iterator["LanguageModel"]:
        """Activate one of the adapters of `load_with_adapters`; None activates the base model."""
        if adapter is not None:
            self.model.set_adapter(adapter)
        base = adapter is None and isinstance(self.model, PeftModel)
        with self.model.disable_adapter() if base else nullcontext():
            yield self


def read_config(key: str, name: str, hint: str = "") -> PreTrainedConfig:
    """Read the configuration of a model: a folder, a Hub id or a `.gguf` file.

    Raises:
        InputError: it cannot be read; names the setting `key`, the model and the cause, followed by `hint`.
    """
    folder = model_folder(name)
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except LOADING_ERRORS as error:
        raise InputError(f"`{key}`: {name} cannot be read: {first_line(error)}{hint}") from error


def stop_ids_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids of the tokens that end a turn, from the tokenizer and the generation config."""
    configured = model.generation_config.eos_token_id if model.generation_config else None
    ids = configured if isinstance(configured, list) else [configured]
    return sorted({i for i in [tokenizer.eos_token_id, *ids] if i is not None})


def load_language_model(
    name: str,
    adapter: str | None = None,
    dtype: str = "float32",
    trainable: bool = False,
    device: str | None = None,
    quantization: str | None = None,
    device_map: str | None = None,
) -> LanguageModel:
    """Load a model in evaluation mode.

    Args:
        name: folder, Hub id or `.gguf` file; only safetensors, no remote code.
        adapter: folder or Hub id of a PEFT adapter.
        dtype: float32, bfloat16 or float16.
        trainable: whether the adapter's weights are to be trained.
        device: such as `cpu` or `cuda:1`; by default the GPU, if there is one.
        quantization: `4bit` for QLoRA's NormalFloat (arXiv 2305.14314); None keeps the weights in `dtype`.
        device_map: `auto` spreads the layers over all GPUs, then the CPU; None puts the model on `device`.

    Raises:
        InputError: the model cannot be loaded; the message names it and the cause.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        usable = torch.device(device).type != "meta"  # tensors without values
    except RuntimeError:
        usable = False
    if not usable:
        raise InputError(
            f"the device `{device}` does not exist or cannot store a model; use cpu, cuda or a number such as cuda:1."
        )
    if device_map and process()[1] > 1:
        raise InputError(
            "`device_map: auto` spreads a model over all GPUs for one process; remove the setting, or start a single "
            "process."
        )
    placement = {"device_map": device_map or {"": device}} if device_map or quantization else {}
    folder = model_folder(name)
    try:
        for part in (folder, adapter or ""):
            check_folder(part)
        if adapter and (Path(adapter) / "adapter/adapter_config.json").is_file():
            raise FileNotFoundError(f"the adapter is in the folder {Path(adapter) / 'adapter'}")
        if adapter:
            check_adapter(folder, adapter)
        tokenizer = load_tokenizer(folder)
        model, report = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), use_safetensors=True, trust_remote_code=False,
            output_loading_info=True, quantization_config=four_bits() if quantization else None, **placement,
        )  # fmt: skip
        if missing := report["missing_keys"]:
            raise ValueError(f"{len(missing)} weights are missing, such as {min(missing)}")
        if extra := report["unexpected_keys"]:
            log.warning("%s: %d weights are not part of the model (first: `%s`)", name, len(extra), min(extra))
        check_batches(name, model)
        if quantization and trainable:
            model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
        if adapter:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message="Found missing adapter keys")
                model = PeftModel.from_pretrained(model, adapter, is_trainable=trainable)
            if dtype == "float32" and not (trainable or placement):
                model = model.merge_and_unload()  # faster; in 16 bits, small changes would be rounded away
        tokenizer.apply_chat_template(
            [{"role": "user", "content": "?"}], add_generation_prompt=True, return_dict=False
        )
        model = (model if placement else model.to(device)).eval()
    except LOADING_ERRORS as error:
        full_name = f"{name} with adapter {adapter}" if adapter else name
        raise InputError(f"the model `{full_name}` cannot be loaded: {first_line(error)}") from error
    return LanguageModel(name, model, tokenizer)


def four_bits() -> BitsAndBytesConfig:
    """Quantization to 4 bits (NormalFloat), with computation in bfloat16.

    Raises:
        InputError: the package bitsandbytes is not installed.
    """
    if not find_spec("bitsandbytes"):
        raise InputError(
            "`quantization: 4bit` needs bitsandbytes; install it: pip install -e '.[4bit]' -c constraints.txt"
        )
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)


def check_folder(name: str) -> None:
    """Check that a name that reads like a path is a folder; the Hub's own error would mislead."""
    if name.startswith(("/", ".", "~")) and not Path(name).is_dir():
        raise FileNotFoundError(f"no folder at {name}")


def check_batches(name: str, model: PreTrainedModel) -> None:
    """Check that batching does not change the model's outputs for a prompt; warn if it does for long prompts.

    Raises:
        ValueError: batching changes the outputs; the message gives the reason.
    """
    config = model.config.get_text_config()
    for layer in DynamicCache(config=model.config).layers:
        if isinstance(layer, LinearAttentionLayer) or not isinstance(layer, DynamicLayer):
            raise ValueError(
                f"a `{config.model_type}` model keeps a recurrent state ({type(layer).__name__}); batching prompts "
                "needs the keys and values of each token"
            )
    if config.model_type in COUNTS_PADDING:
        raise ValueError(
            f"the outputs of a `{config.model_type}` model for a prompt change in a batch with longer prompts"
        )
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = {part.get("rope_type") for part in (rope, *rope.values()) if isinstance(part, dict)}
    chunk = getattr(config, "attention_chunk_size", None)
    if changing := sorted(kinds & {"dynamic", "longrope"}):
        log.warning("%s: RoPE scaling `%s` depends on the longest prompt in a batch, so short prompts batched with "
                    "long ones get different outputs; keep prompts to %s tokens", name, changing[0],
                    rope.get("original_max_position_embeddings") or config.max_position_embeddings)  # fmt: skip
    elif chunk:
        log.warning("%s: keep prompts to %d tokens, the size of an attention chunk; beyond it, outputs depend on the "
                    "other prompts of a batch", name, chunk)  # fmt: skip


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Load a tokenizer that pads on the left. The end token replaces a missing pad token, and a plain template a
    missing chat template. Optional thinking (Qwen3) is turned off in the template, for training too."""
    tokenizer = AutoTokenizer.from_pretrained(model_folder(name), padding_side="left", trust_remote_code=False)
    if tokenizer.chat_template is None:
        tokenizer.chat_template = PLAIN_TEMPLATE
    template = tokenizer.chat_template
    if isinstance(template, str) and "enable_thinking" in template and not template.startswith(NO_THINKING):
        tokenizer.chat_template = NO_THINKING + template
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def check_room(lm: LanguageModel, max_new_tokens: int, key: str) -> None:
    """Check that the maximum output length, set by `key`, leaves room for a prompt in the context."""
    if max_new_tokens >= lm.context:
        raise InputError(
            f"`{key}` must be below the context of {lm.name} ({lm.context} tokens), got {max_new_tokens}."
        )
