"""Loading an encoder from the three layouts that are published: sentence-transformers (`modules.json`), ANCE
(RoBERTa with an embedding head), and a plain Transformers model.

Imports torch: import it inside functions.
"""

import os
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import (
    MODEL_FOR_TEXT_ENCODING_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForTextEncoding,
    AutoTokenizer,
    PreTrainedModel,
    RobertaModel,
)
from transformers.models.roberta.modeling_roberta import RobertaPreTrainedModel
from transformers.utils import logging as transformers_logging

from core.artifacts import sha256
from core.errors import InputError, first_line
from retrieval.encoder import Encoder
from retrieval.encoder_layout import Layout, file_of, layout_of

DECIDING = (".safetensors", ".json", ".txt", ".model")  # files of a folder that decide its vectors


class AnceModel(RobertaPreTrainedModel):
    """ANCE as published: RoBERTa, and on the state of its first token a linear layer and a layer norm.

    Source: https://github.com/microsoft/ANCE/blob/master/model/models.py (`RobertaDot_NLL_LN`). The files of
    `castorini/ance-msmarco-passage` have `ance_encoder.` before each name.
    """

    HEAD = "embeddingHead.weight"

    def __init__(self, config):
        super().__init__(config)
        self.roberta = RobertaModel(config, add_pooling_layer=False)
        self.embeddingHead = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size)
        self.post_init()


def load_encoder(
    name: str,
    pooling: str | None = None,
    normalize: bool | None = None,
    query_prefix: str | None = None,
    passage_prefix: str | None = None,
    max_length: int | None = None,
    dtype: str = "float32",
    batch_tokens: int = 16384,
) -> Encoder:
    """Load an encoder; what is None is as its files say.

    Args:
        name: folder or Hub id; safetensors, no remote code.
        pooling: `mean` or `cls`, for a plain model (`mean` when None).
        normalize: vectors of length 1.
        query_prefix: put before each query.
        passage_prefix: put before each passage.
        max_length: tokens of the longest text; longer ones are cut.
        dtype: float32, bfloat16 or float16.
        batch_tokens: tokens per batch.

    Raises:
        InputError: it cannot be loaded, has a part that is not supported, or contradicts an argument.
    """
    try:
        layout = layout_of(name)
        model, missing = read_model(name, layout, dtype)
        tokenizer = AutoTokenizer.from_pretrained(name, subfolder=layout.folder)
    except InputError:
        raise
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, SafetensorError) as error:
        hint = " https://huggingface.co/spaces/safetensors/convert makes such weights of others."
        raise InputError(
            f"`retrieval.encoder`: {name} cannot be loaded: {first_line(error)}{hint * ('safetensors' in str(error))}"
        ) from error
    if missing:
        raise InputError(
            f"`retrieval.encoder`: {name} has no weights for `{missing[0]}` and {len(missing) - 1} others; "
            "it is not a whole text encoder."
        )
    if pooling and layout.pooling and pooling != layout.pooling:
        raise InputError(
            f"`retrieval.pooling` is `{pooling}`, but {name} says `{layout.pooling}` itself; leave the setting out."
        )
    prefixes = [
        given if given is not None else own
        for given, own in ((query_prefix, layout.query_prefix), (passage_prefix, layout.passage_prefix))
    ]
    if any(prefixes) and not layout.pools_prefix:
        raise InputError(f"`retrieval.encoder`: {name} leaves prefixes out of its pooling, which is not supported.")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return Encoder(
        name,
        identity_of(name),
        model.to(device_of_process()).eval(),
        tokenizer,
        room_for(name, model, tokenizer, max_length, layout.max_length),
        pooling or layout.pooling or "mean",
        nn.Sequential(*layout.heads).to(model.device).eval(),
        layout.normalize if normalize is None else normalize,
        layout.lower,
        *prefixes,
        batch_tokens,
    )


def device_of_process() -> torch.device:
    """The GPU of this process where there is one, else the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))


def read_model(name: str, layout: Layout, dtype: str) -> tuple[PreTrainedModel, list[str]]:
    """The Transformer, and the names of weights that its files lack. An ANCE checkpoint fills in the layout."""
    config = AutoConfig.from_pretrained(name, subfolder=layout.folder)
    kind = AutoModelForTextEncoding if type(config) in MODEL_FOR_TEXT_ENCODING_MAPPING else AutoModel  # T5's encoder
    wanted = {
        "subfolder": layout.folder,
        "dtype": getattr(torch, dtype),
        "use_safetensors": True,
        "output_loading_info": True,
        "key_mapping": {r"^ance_encoder\.": ""},
    }
    said = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # its report of unused weights; what matters is checked here
    try:
        model, report = kind.from_pretrained(name, **wanted)
        if AnceModel.HEAD in report["unexpected_keys"] and not layout.pooling:
            ance, report = AnceModel.from_pretrained(name, **wanted)
            model, layout.pooling, layout.heads = ance.roberta, "cls", [ance.embeddingHead.float(), ance.norm.float()]
    finally:
        transformers_logging.set_verbosity(said)
    return model, sorted(key for key in report["missing_keys"] if not key.startswith("pooler."))


def room_for(name: str, model: PreTrainedModel, tokenizer, wanted: int | None, own: int | None) -> int:
    """Tokens of the longest text: what is wanted, else what the encoder says, within its positions.

    Raises:
        InputError: more is wanted than the model has positions.
    """
    positions = getattr(model.config, "max_position_embeddings", None) or 1 << 20
    table = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    if getattr(table, "padding_idx", None) is not None:
        positions -= table.padding_idx + 1  # RoBERTa and MPNet count from after the padding token's
    if wanted and wanted > positions:
        raise InputError(f"`retrieval.max_length` is {wanted}, but {name} takes {positions} tokens at most.")
    return wanted or min(positions, tokenizer.model_max_length, own or positions)


def identity_of(name: str) -> str:
    """Hash of the files of a folder; of a Hub model its id and revision."""
    folder = Path(name)
    if folder.is_dir():
        return sha256(*sorted(file for file in folder.rglob("*") if file.suffix in DECIDING))[:16]
    return f"{name}@{file_of(name, 'config.json').parent.name}"  # in the Hub's cache each revision has a folder
