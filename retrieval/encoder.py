"""Text encoders with sentence-transformers: its own models, plain Transformers encoders and ANCE checkpoints.

This module imports torch and sentence-transformers; import it in the function that uses it.
"""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, LayerNorm, Normalize, Pooling, Transformer
from sentence_transformers.util import disable_logging, is_sentence_transformer_model, load_file_path
from torch import nn
from transformers import PreTrainedTokenizerBase
from transformers.models.roberta.modeling_roberta import RobertaPreTrainedModel

from core.batching import batches_by_tokens
from core.cache import model_identity
from core.errors import InputError, first_line
from core.settings import RetrievalSettings

logging.getLogger("sentence_transformers").setLevel(logging.WARNING)

UNLIMITED = 1 << 20  # tokens, for models without position embeddings
RESERVED_POSITIONS = {"camembert": 2, "mpnet": 2, "roberta": 2, "xlm-roberta": 2}  # positions not used for tokens


class Encoder:
    """Encodes queries and passages as vectors. A setting that is None keeps the value in the encoder's files.

    Args:
        settings: `encoder` and the other settings of `dense`. Weights must be safetensors; code from the model
            repository is not run.

    Raises:
        InputError: the encoder cannot be loaded, or a setting contradicts its files.
    """

    def __init__(self, settings: RetrievalSettings):
        self.name = name = settings.encoder
        self.batch_tokens = settings.batch_tokens
        self.model = model = load_model(name, settings.pooling or "mean", settings.dtype)
        pooling = next((module.pooling_mode for module in model if isinstance(module, Pooling)), None)
        if settings.pooling and settings.pooling != pooling:
            raise InputError(
                f"`retrieval.pooling` is `{settings.pooling}`, but {name} uses `{pooling}`; remove the setting."
            )
        body, length = model.transformers_model.config, settings.max_length
        positions = getattr(body, "max_position_embeddings", UNLIMITED) - RESERVED_POSITIONS.get(body.model_type, 0)
        if length and length > positions:
            raise InputError(f"`retrieval.max_length` is {length}, but {name} accepts at most {positions} tokens.")
        model.max_seq_length = length or min(positions, model.max_seq_length)
        if model.tokenizer.pad_token is None:
            model.tokenizer.pad_token = model.tokenizer.eos_token
        normalize = read_json(name, "config_sentence_transformers.json").get("similarity_fn_name") == "cosine"
        if isinstance(model[-1], Normalize):  # `_encode` normalizes
            normalize = True
            del model[-1]
        passage_prompts = (model.prompts.get(key) for key in ("document", "passage", "corpus"))
        passage_prefix = next(filter(None, passage_prompts), "")
        self.query_prefix = model.prompts.get("query", "") if settings.query_prefix is None else settings.query_prefix
        self.config = {  # everything that affects the vector of a passage
            "encoder": model_identity(name),
            "pooling": pooling,
            "normalize": normalize if settings.normalize is None else settings.normalize,
            "passage_prefix": passage_prefix if settings.passage_prefix is None else settings.passage_prefix,
            "max_length": model.max_seq_length,
            "dtype": str(model.dtype),
        }

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of queries, float32 [texts, dimension]."""
        return self._encode(texts, self.query_prefix, self.model.encode_query)

    def encode_passages(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of passages, float32 [texts, dimension]."""
        return self._encode(texts, self.config["passage_prefix"], self.model.encode_document)

    def _encode(self, texts: Sequence[str], prefix: str, encode) -> np.ndarray:
        """Encode texts sorted by length, in batches of at most `batch_tokens` tokens.

        Raises:
            InputError: a vector is not finite.
        """
        tokens = self.model.tokenizer([prefix + text for text in texts], truncation=True)["input_ids"]
        vectors = np.empty((len(texts), self.model.get_embedding_dimension()), dtype=np.float32)
        options = {"prompt": prefix, "normalize_embeddings": self.config["normalize"], "show_progress_bar": False}
        for batch in batches_by_tokens([len(ids) for ids in tokens], self.batch_tokens):
            vectors[batch] = encode([texts[i] for i in batch], batch_size=len(batch), **options)
        broken = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
        if len(broken):
            raise InputError(
                f"`retrieval.encoder`: the vector of {self.name} is not finite for the text {texts[broken[0]]!r:.60}; "
                f"try `--retrieval.dtype float32`."
            )
        return vectors


def load_model(name: str, pooling: str, dtype: str) -> SentenceTransformer:
    """Load a sentence-transformers model, or a plain Transformers encoder with a pooling layer.

    Raises:
        InputError: the model cannot be loaded, or its weights are not safetensors.
    """
    options = {"dtype": dtype, "use_safetensors": True}
    try:
        if not is_sentence_transformer_model(name):
            return SentenceTransformer(modules=plain_modules(name, pooling, options))
        for module in read_json(name, "modules.json")[1:]:  # `use_safetensors` only covers the first, the Transformer
            files = [load_file_path(name, file, module["path"]) for file in ("model.safetensors", "pytorch_model.bin")]
            if files[1] and not files[0]:
                raise OSError(f"{module['path']} has no model.safetensors")
        model = SentenceTransformer(name, model_kwargs=options)
        if not isinstance(model.tokenizer, PreTrainedTokenizerBase):
            raise ValueError("it is not a Transformer text encoder")
        return model
    except Exception as error:  # the Hub, Transformers and broken files raise many types
        hint = " https://huggingface.co/spaces/safetensors/convert converts weights to safetensors."
        raise InputError(
            f"`retrieval.encoder`: {name} cannot be loaded: {first_line(error)}{hint * ('safetensors' in str(error))}"
        ) from error


def plain_modules(name: str, pooling: str, options: dict[str, Any]) -> list[nn.Module]:
    """A Transformers encoder and its pooling layer; ANCE checkpoints have a special head.

    Raises:
        ValueError: weights of the encoder are missing from the files.
    """
    options = options | {"key_mapping": {r"^ance_encoder\.": ""}}  # in `castorini/ance-msmarco-passage`
    with disable_logging(logging.WARNING):  # Transformers reports weights that it does not use
        body = Transformer(name, model_kwargs=dict(options), config_kwargs={"trust_remote_code": False})
        _, report = type(body.auto_model).from_pretrained(name, **options, device_map="meta", output_loading_info=True)
        missing = sorted(key for key in report["missing_keys"] if not key.startswith("pooler."))
        if missing:
            raise ValueError(f"it has no weights for `{missing[0]}` and {len(missing) - 1} others.")
        dimension = body.get_embedding_dimension()
        if AnceHead.KEY not in report["unexpected_keys"]:
            return [body, Pooling(dimension, pooling)]
        head = AnceHead.from_pretrained(name, **options)
    dense = Dense(dimension, dimension, True, None, head.embeddingHead.weight, head.embeddingHead.bias)
    norm = LayerNorm(dimension)
    norm.norm = head.norm
    return [body, Pooling(dimension, "cls"), dense, norm]


class AnceHead(RobertaPreTrainedModel):
    """The head of ANCE: a linear layer and a layer norm on the hidden state of RoBERTa's first token.

    Source: https://github.com/microsoft/ANCE/blob/master/model/models.py (`RobertaDot_NLL_LN`).
    """

    KEY = "embeddingHead.weight"

    def __init__(self, config):
        super().__init__(config)
        self.embeddingHead = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size)
        self.post_init()


def read_json(name: str, file: str) -> Any:
    """Read a JSON file of a folder or Hub model; an empty object if the file does not exist."""
    path = load_file_path(name, file)
    return json.loads(Path(path).read_text(encoding="utf-8")) if path else {}
