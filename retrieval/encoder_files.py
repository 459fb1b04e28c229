"""Loading an encoder from the three layouts that are published: sentence-transformers (`modules.json`), ANCE
(RoBERTa with an embedding head), and a plain Transformers model.

Imports torch: import it inside functions.
"""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
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
from transformers.utils import cached_file
from transformers.utils import logging as transformers_logging

from core.artifacts import sha256
from core.errors import InputError, first_line
from retrieval.encoder import POOLINGS, Encoder

DECIDING = (".safetensors", ".json", ".txt", ".model")  # files of a folder that decide its vectors
ACTIVATIONS = {"Identity": nn.Identity, "Tanh": nn.Tanh, "ReLU": nn.ReLU, "GELU": nn.GELU}
TRANSFORMER_SETTINGS = [f"sentence_{kind}_config.json" for kind in ("bert", "roberta", "distilbert", "xlm-roberta")]
POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}


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


@dataclass
class Layout:
    """What an encoder's files say about it; `None` where they do not say. `folder` is that of the Transformer."""

    folder: str = ""
    pooling: str | None = None
    heads: list[nn.Module] = field(default_factory=list)
    normalize: bool = False
    max_length: int | None = None
    lower: bool = False
    query_prefix: str = ""
    passage_prefix: str = ""
    pools_prefix: bool = True


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


def file_of(name: str, path: str) -> Path | None:
    """A file of a folder or Hub model, None where it has none of that name."""
    found = cached_file(name, path, _raise_exceptions_for_missing_entries=False)
    return Path(found) if found else None


def json_of(name: str, path: str) -> Any:
    """A JSON file of a folder or Hub model, None where it has none of that name."""
    file = file_of(name, path)
    return json.loads(file.read_text(encoding="utf-8")) if file else None


def layout_of(name: str) -> Layout:
    """What `modules.json` and the files that it names say; nothing for a model without one.

    Raises:
        InputError: a module is not supported.
    """
    layout = Layout()
    for module in json_of(name, "modules.json") or []:
        kind, path = module["type"].rpartition(".")[2], module["path"]
        if kind == "Transformer":
            read_transformer(name, path, layout)
        elif kind == "Pooling":
            read_pooling(name, json_of(name, f"{path}/config.json") or {}, layout)
        elif kind in ("Dense", "LayerNorm") and not layout.normalize:
            layout.heads.append(head_of(name, path, kind))
        elif kind == "Normalize":
            layout.normalize = True
        elif kind != "Dropout":
            raise InputError(
                f"`retrieval.encoder`: {name} has a module `{module['type']}` that is not supported here; "
                "Transformer, Pooling, Dense, LayerNorm and, as the last, Normalize are."
            )
    whole = json_of(name, "config_sentence_transformers.json") or {} if layout.pooling else {}
    prompts = whole.get("prompts") or {}
    layout.query_prefix = prompts.get("query") or ""
    names = ("document", "passage", "corpus")
    layout.passage_prefix = next((prompts[name] for name in names if prompts.get(name)), "")
    layout.normalize |= whole.get("similarity_fn_name") == "cosine"
    return layout


def read_transformer(name: str, path: str, layout: Layout) -> None:
    """The settings of the module `Transformer`."""
    layout.folder = path
    files = (json_of(name, f"{path}/{file}" if path else file) for file in TRANSFORMER_SETTINGS)
    options = next((found for found in files if found), {})
    task = options.get("transformer_task", "feature-extraction")
    if task != "feature-extraction":
        raise InputError(f"`retrieval.encoder`: {name} is for `{task}`; one for `feature-extraction` is needed.")
    if "message" in options.get("modality_config", {}):
        raise InputError(f"`retrieval.encoder`: {name} reads texts through a chat template, which is not supported.")
    layout.max_length, layout.lower = options.get("max_seq_length"), bool(options.get("do_lower_case"))


def read_pooling(name: str, options: dict[str, Any], layout: Layout) -> None:
    """The settings of the module `Pooling`: one name, or in older files a flag for each."""
    flags = [mode for flag, mode in POOLING_FLAGS.items() if options.get(flag)]
    layout.pooling = options.get("pooling_mode") or "+".join(flags) or "mean"
    layout.pools_prefix = options.get("include_prompt", True)
    if layout.pooling not in POOLINGS:
        raise InputError(
            f"`retrieval.encoder`: {name} has the pooling `{layout.pooling}`; supported: {', '.join(POOLINGS)}."
        )


def head_of(name: str, path: str, kind: str) -> nn.Module:
    """A `Dense` or `LayerNorm` module with its weights."""
    file = file_of(name, f"{path}/model.safetensors")
    if file is None:
        raise InputError(
            f"`retrieval.encoder`: {name} has no {path}/model.safetensors; weights must be safetensors. Saving it "
            "again with sentence-transformers writes them."
        )
    weights = load_file(file)
    if kind == "LayerNorm":
        norm = nn.LayerNorm(len(weights["norm.weight"]))
        norm.load_state_dict({"weight": weights["norm.weight"], "bias": weights["norm.bias"]})
        return norm
    activation = (json_of(name, f"{path}/config.json") or {}).get("activation_function", "Tanh").rpartition(".")[2]
    if activation not in ACTIVATIONS:
        raise InputError(
            f"`retrieval.encoder`: {name} has the activation `{activation}`; supported: {', '.join(ACTIVATIONS)}."
        )
    linear = nn.Linear(*reversed(weights["linear.weight"].shape), bias="linear.bias" in weights)
    linear.load_state_dict({key.removeprefix("linear."): value for key, value in weights.items()})
    return nn.Sequential(linear, ACTIVATIONS[activation]())
