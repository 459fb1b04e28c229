"""Models before loading: their settings and fingerprints; several adapters on one base model."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from peft import PeftModel

from core.adapters import LOADING_ERRORS
from core.artifacts import sha256
from core.errors import InputError, first_line
from core.gguf import gguf_sha256, is_gguf
from core.language_model import LanguageModel, load_language_model
from core.settings import GeneratorSettings, ModelSettings, RewriterSettings


@dataclass(frozen=True)
class ModelSpec:
    """A model that is not loaded yet: folder, Hub id or `.gguf` file, PEFT adapter, and how the weights are loaded."""

    name: str
    adapter: str | None = None
    dtype: str = "float32"
    quantization: str | None = None
    device_map: str | None = None

    @classmethod
    def of(cls, options: ModelSettings) -> "ModelSpec":
        """The model named in the settings."""
        return cls(options.model, options.adapter, options.dtype, options.quantization, options.device_map)

    @property
    def fingerprint(self) -> str:
        """The hash of weights, config and tokenizer (of the whole file, for GGUF) or the Hub id, of model and adapter;
        then the quantization."""
        parts = [fingerprint_of(part) for part in (self.name, self.adapter) if part]
        return "+".join([*parts, *filter(None, [self.quantization])])

    def load(self, trainable: bool = False) -> LanguageModel:
        """Load the model; see `load_language_model`."""
        return load_language_model(
            self.name, self.adapter, self.dtype, trainable,
            quantization=self.quantization, device_map=None if trainable else self.device_map,
        )  # fmt: skip


def rewriter_spec(options: RewriterSettings) -> ModelSpec:
    """The rewriter before training; `rewriter.model` must be set."""
    if not options.model:
        raise InputError(
            "`rewriter.model` is not set; name a folder, a Hub id or a `.gguf` file with `--rewriter.model MODEL`."
        )
    return ModelSpec.of(options)


def generator_spec(options: GeneratorSettings, rewriter: RewriterSettings) -> ModelSpec:
    """The generator; the rewriter before training if `generator.model` is not set."""
    if not options.model:
        return replace(ModelSpec.of(options), name=rewriter_spec(rewriter).name, adapter=rewriter.adapter)
    return ModelSpec.of(options)


def fingerprint_of(name: str) -> str:
    if is_gguf(name):
        return gguf_sha256(name)[:16]
    folder = Path(name)
    if not folder.is_dir():
        return name
    patterns = ("*.safetensors", "*config.json", "tokenizer*", "vocab*", "merges*", "chat_template*")
    return sha256(*sorted({file for pattern in patterns for file in folder.glob(pattern)}))[:16]


def load_with_adapters(spec: ModelSpec, adapters: Mapping[str, str]) -> LanguageModel:
    """Load one base model with several adapters; `LanguageModel.using` switches between them.

    Args:
        spec: the base model; its own adapter is ignored.
        adapters: name -> folder or Hub id.

    Raises:
        InputError: the model or an adapter cannot be loaded.
    """
    lm = replace(spec, adapter=None).load()
    for name, folder in adapters.items():
        try:
            if isinstance(lm.model, PeftModel):
                lm.model.load_adapter(folder, adapter_name=name)
            else:
                lm.model = PeftModel.from_pretrained(lm.model, folder, adapter_name=name).eval()
        except LOADING_ERRORS as error:
            raise InputError(f"the adapter {folder} of `{spec.name}` cannot be loaded: {first_line(error)}") from error
    return lm
