"""GGUF models (llama.cpp): converted once to safetensors, then loaded and trained like other models.

A converted model is a folder in the user's cache, named after the SHA-256 of its file. It contains weights, config,
tokenizer, chat template and generation config, and depends only on the file.
"""

import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import torch
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

from core.cache import build_once, cached_sha256, user_cache
from core.errors import InputError, first_line
from core.progress import log

# Values of `tokenizer.ggml.pre` whose tokenizers split numbers into digits; Transformers loads them as GPT-2's.
SINGLE_DIGITS = ("smollm", "starcoder", "refact", "command-r")


def is_gguf(name: str) -> bool:
    """Whether a model's name is a GGUF file, not a folder or a model on the Hub."""
    return name.lower().endswith(".gguf") and not Path(name).is_dir()


def gguf_sha256(name: str) -> str:
    """SHA-256 of a GGUF file, stored in the user's cache."""
    path, cache = Path(name), user_cache()
    if not path.is_file():
        raise InputError(f"no model file at {path}; `make smollm2` creates models/smollm2-135m-instruct.gguf.")
    try:
        return cached_sha256(path, cache)
    except OSError as error:
        raise InputError(
            f"{error.filename or path}: {error.strerror}; converted models are stored in {cache}. Set XDG_CACHE_HOME "
            "to use another folder."
        ) from error


def model_folder(name: str) -> str:
    """The name that Transformers loads for a model: the converted folder of a GGUF file, else the name itself.

    A file is converted on first use. One process converts it while the others wait.

    Raises:
        InputError: the GGUF file is missing, damaged or of an unknown architecture, or the package `gguf` is missing.
    """
    if not is_gguf(name):
        return name
    folder = user_cache() / "models" / gguf_sha256(name)[:16]

    def build(partial: Path) -> None:
        if find_spec("gguf") is None:
            raise InputError(f"{name}: GGUF files need the package `gguf`; install it with `pip install gguf`.")
        log.info("%s: converting to safetensors (once)", name)
        start = time.monotonic()
        try:
            convert(Path(name), partial)
        except Exception as error:  # a reader may raise any error for a damaged file
            raise InputError(
                f"{name} cannot be converted: {first_line(error).rstrip('.')}. Is the file complete, and does "
                "Transformers read its architecture from GGUF (docs/models.md)?"
            ) from error
        size = sum(file.stat().st_size for file in partial.iterdir()) / 1e6
        log.info("%s: converted in %.0f s, %.0f MB -> %s", name, time.monotonic() - start, size, folder)

    build_once(folder, build)
    return str(folder)


def convert(path: Path, folder: Path) -> None:
    """Convert the model of a GGUF file to safetensors.

    Weights become float32: a quantized weight is an integer times a float16 scale, which bfloat16 would round. They
    are rounded only when the model is loaded, to `rewriter.dtype` or `generator.dtype`.
    """
    from gguf import GGUFReader  # an optional package

    vocabulary = GGUFReader(path).get_field("tokenizer.ggml.pre")
    with tempfile.TemporaryDirectory() as scratch:  # no other file of its folder is read
        (Path(scratch) / "model.gguf").symlink_to(path.resolve())
        source = {"pretrained_model_name_or_path": scratch, "gguf_file": "model.gguf"}
        tokenizer = AutoTokenizer.from_pretrained(**source)
        config = AutoConfig.from_pretrained(**source)
        dequantized, report = AutoModelForCausalLM.from_pretrained(
            **source, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32, output_loading_info=True
        )
    if missing := report["missing_keys"]:
        raise ValueError(f"{len(missing)} weights are missing, such as {min(missing)}")
    if vocabulary is not None and vocabulary.contents() in SINGLE_DIGITS:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    with torch.device("meta"):  # a model loaded from GGUF cannot be saved; move its weights to one that can
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(dequantized.state_dict(), assign=True)
    model.tie_weights()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
