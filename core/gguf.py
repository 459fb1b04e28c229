"""Models in GGUF files (llama.cpp): converted once to safetensors, which is what is trained and loaded.

A converted model is a folder in the user's cache, named by the SHA-256 of its file. It holds weights, settings,
tokenizer, chat template and generation settings, and depends on nothing but the file.
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

# `tokenizer.ggml.pre` of vocabularies that take each digit alone; llama.cpp does, Transformers reads them as GPT-2's.
SINGLE_DIGITS = ("smollm", "starcoder", "refact", "command-r")


def is_gguf(name: str) -> bool:
    """Whether a model's name is that of a GGUF file, and not of a folder or of a model on the Hub."""
    return name.lower().endswith(".gguf") and not Path(name).is_dir()


def gguf_sha256(name: str) -> str:
    """SHA-256 of a GGUF file, which is noted in the user's cache."""
    path, cache = Path(name), user_cache()
    if not path.is_file():
        raise InputError(f"there is no model file {path}; `make smollm2` makes models/smollm2-135m-instruct.gguf.")
    try:
        return cached_sha256(path, cache)
    except OSError as error:
        raise InputError(
            f"{error.filename or path}: {error.strerror}; converted models are kept in {cache}, and the variable "
            "XDG_CACHE_HOME names another place."
        ) from error


def model_folder(name: str) -> str:
    """What Transformers loads for a model's name: the converted folder of a GGUF file, else the name itself.

    A file is converted when it is asked for first. Of several processes one converts it, and the others wait.

    Raises:
        InputError: the GGUF file is missing, damaged or of an unknown architecture, or the package `gguf` is missing.
    """
    if not is_gguf(name):
        return name
    folder = user_cache() / "models" / gguf_sha256(name)[:16]

    def build(partial: Path) -> None:
        if find_spec("gguf") is None:
            raise InputError(f"{name}: a GGUF file is read with the package `gguf`; `pip install gguf` installs it.")
        log.info("%s: converting to safetensors (once)", name)
        start = time.monotonic()
        try:
            convert(Path(name), partial)
        except Exception as error:  # whatever a reader may raise for a damaged file
            raise InputError(
                f"{name} cannot be converted: {first_line(error).rstrip('.')}. Is the file complete, and does "
                "Transformers read its architecture from GGUF (docs/models.md)?"
            ) from error
        size = sum(file.stat().st_size for file in partial.iterdir()) / 1e6
        log.info("%s: converted in %.0f s, %.0f MB -> %s", name, time.monotonic() - start, size, folder)

    build_once(folder, build)
    return str(folder)


def convert(path: Path, folder: Path) -> None:
    """Write the model of a GGUF file as safetensors.

    Weights become float32: a quantized weight is an integer times a float16 scale, and has more digits than bfloat16.
    A model is rounded when it is loaded, where `rewriter.dtype` or `generator.dtype` say so.
    """
    from gguf import GGUFReader  # an optional package

    vocabulary = GGUFReader(path).get_field("tokenizer.ggml.pre")
    with tempfile.TemporaryDirectory() as scratch:  # files beside the GGUF file must not decide anything
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
    with torch.device("meta"):  # a model that was read from GGUF cannot be saved; its weights move to one that can
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(dequantized.state_dict(), assign=True)
    model.tie_weights()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
