"""Models by name: what the settings ask for, what identifies a model, and several adapters on one base model."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from peft import PeftModel

from core.artifacts import sha256
from core.errors import InputError, first_line
from core.gguf import gguf_sha256, is_gguf
from core.language_model import LOADING_ERRORS, LanguageModel, load_language_model
from core.settings import GeneratorSettings, RewriterSettings


@dataclass(frozen=True)
class ModelSpec:
    """A model that is not loaded yet: folder, Hub id or `.gguf` file, a PEFT adapter, and the dtype of the weights."""

    name: str
    adapter: str | None = None
    dtype: str = "float32"

    @property
    def fingerprint(self) -> str:
        """The hash of weights, configuration and tokenizer (of the file, for a GGUF file), or the Hub id."""
        return "+".join(fingerprint_of(part) for part in (self.name, self.adapter) if part)

    def load(self, trainable: bool = False) -> LanguageModel:
        """Load the model; see `load_language_model`."""
        return load_language_model(self.name, self.adapter, self.dtype, trainable)


@dataclass(frozen=True)
class ServedModel:
    """A model on a server with the OpenAI protocol: the address that ends in `/v1`, and its name there."""

    url: str
    name: str

    @property
    def fingerprint(self) -> dict[str, str]:
        """What a stage records of it; the server does not tell more."""
        return {"url": self.url, "served_model": self.name}


def rewriter_spec(options: RewriterSettings) -> ModelSpec:
    """The rewriter before training, which must be set."""
    if not options.model:
        raise InputError(
            "`rewriter.model` is not set; name a folder, a Hub id or a `.gguf` file with `--rewriter.model MODEL`."
        )
    return ModelSpec(options.model, options.adapter, options.dtype)


def generator_spec(options: GeneratorSettings, rewriter: RewriterSettings) -> ModelSpec:
    """The generator: the rewriter before training where no model is named."""
    if not options.model:
        return replace(rewriter_spec(rewriter), dtype=options.dtype)
    return ModelSpec(options.model, options.adapter, options.dtype)


def fingerprint_of(name: str) -> str:
    if is_gguf(name):
        return gguf_sha256(name)[:16]
    folder = Path(name)
    if not folder.is_dir():
        return name
    patterns = ("*.safetensors", "*config.json", "tokenizer*", "vocab*", "merges*", "chat_template*")
    return sha256(*sorted({file for pattern in patterns for file in folder.glob(pattern)}))[:16]


def load_with_adapters(spec: ModelSpec, adapters: Mapping[str, str]) -> LanguageModel:
    """Load one base model (the adapter of `spec` is not looked at) with adapters, name -> folder or Hub id.

    `LanguageModel.using` switches between them.

    Raises:
        InputError: the model or an adapter cannot be loaded.
    """
    lm = load_language_model(spec.name, None, spec.dtype)
    for name, folder in adapters.items():
        try:
            if isinstance(lm.model, PeftModel):
                lm.model.load_adapter(folder, adapter_name=name)
            else:
                lm.model = PeftModel.from_pretrained(lm.model, folder, adapter_name=name).eval()
        except LOADING_ERRORS as error:
            raise InputError(f"the adapter {folder} of `{spec.name}` cannot be loaded: {first_line(error)}") from error
    return lm
