"""Entailment between two texts, by a sequence-classification model or by exact match."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from core.adapters import LOADING_ERRORS
from core.batching import batches_by_tokens
from core.errors import InputError, first_line
from core.language_model import check_folder
from scoring.answers import normalize_answer
from scoring.batch import Entailment, NliResult

LABELS = ("contradiction", "neutral", "entailment")
MAX_KEPT = 1 << 16  # cached verdicts; more than a batch of turns needs
Text = tuple[str, str]  # premise, hypothesis


class ExactMatch:
    """Counts texts that are equal after normalization as entailment, all others as neutral. Needs no model."""

    def judge(self, pairs: Sequence[Text]) -> list[NliResult]:
        equal = [normalize_answer(premise) == normalize_answer(hypothesis) for premise, hypothesis in pairs]
        return [NliResult("entailment", 1.0) if same else NliResult("neutral", 0.0) for same in equal]


class EntailmentModel:
    """A natural-language-inference model of Transformers. Identical pairs in a batch of turns are classified once.

    Args:
        name: folder or Hub id of a sequence-classification model whose config names its three labels.
        batch_tokens: tokens per batch.
        device: device of the model; by default a GPU if available, else the CPU.

    Raises:
        InputError: the model cannot be loaded, or its labels are not contradiction, neutral and entailment.
    """

    def __init__(self, name: str, batch_tokens: int = 16384, device: str | None = None):
        self.name, self.batch_tokens = name, batch_tokens
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.tokenizer, model = load_classifier(name)
        self.model = model.to(self.device).eval()
        self.columns = columns_of(name, model.config.id2label)
        self.verdicts: dict[Text, NliResult] = {}

    def judge(self, pairs: Sequence[Text]) -> list[NliResult]:
        if len(self.verdicts) > MAX_KEPT:
            self.verdicts.clear()
        new = [pair for pair in dict.fromkeys(pairs) if pair not in self.verdicts]
        if new:
            ids = self.tokenizer([p for p, _ in new], [h for _, h in new], truncation=True)["input_ids"]
            for batch in batches_by_tokens([len(row) for row in ids], self.batch_tokens):
                self._classify([new[i] for i in batch])
        return [self.verdicts[pair] for pair in pairs]

    def _classify(self, pairs: Sequence[Text]) -> None:
        premises, hypotheses = zip(*pairs, strict=True)
        inputs = self.tokenizer(
            list(premises), list(hypotheses), truncation=True, padding=True, return_tensors="pt"
        ).to(self.device)
        with torch.inference_mode():
            rows = self.model(**inputs).logits.float().softmax(-1)[:, self.columns]
        if not rows.isfinite().all():
            raise InputError(
                f"`scoring.entailment`: {self.name} returns values that are not numbers; use another model."
            )
        for pair, row in zip(pairs, rows.tolist(), strict=True):
            self.verdicts[pair] = NliResult(LABELS[row.index(max(row))], row[2])


@lru_cache(maxsize=1)
def load_classifier(name: str) -> tuple[Any, Any]:
    """Load the tokenizer and the model; the last ones loaded are cached.

    Raises:
        InputError: the tokenizer or the model cannot be loaded.
    """
    try:
        check_folder(name)
        model = AutoModelForSequenceClassification.from_pretrained(name, use_safetensors=True, trust_remote_code=False)
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False), model
    except LOADING_ERRORS as error:
        raise InputError(
            f"`entailment`: the model `{name}` cannot be loaded: {first_line(error).rstrip('.')}. "
            "Weights must be safetensors; `exact` needs no model."
        ) from error


def columns_of(name: str, labels: dict[int, str]) -> list[int]:
    """The model's output columns in the order of `LABELS`.

    Raises:
        InputError: a label is missing or occurs more than once.
    """
    order = []
    for expected in LABELS:
        columns = [column for column, label in labels.items() if expected[:7] in label.lower()]
        if len(columns) != 1:
            raise InputError(
                f"`scoring.entailment`: {name} has the labels {', '.join(labels.values())}; "
                f"it needs exactly one each of {', '.join(LABELS)}."
            )
        order.append(int(columns[0]))
    return order


def load_entailment(name: str, batch_tokens: int, device: str | None = None) -> Entailment:
    """The entailment classifier that `scoring.entailment` names: `exact` or a model."""
    return ExactMatch() if name == "exact" else EntailmentModel(name, batch_tokens, device)
