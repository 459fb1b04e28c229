"""What the files of a sentence-transformers encoder say about it: `modules.json` and those that it names.

Imports torch: import it inside functions.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import nn
from transformers.utils import cached_file

from core.errors import InputError
from retrieval.encoder import POOLINGS

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
