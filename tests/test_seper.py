"""SePer by hand: a scripted classifier, several clusters, two references; and a real (random) entailment model."""

import math

import pytest

from core.errors import InputError
from core.records import SampledAnswer
from scoring.batch import NliResult
from scoring.entailment import EntailmentModel, ExactMatch
from scoring.seper import belief, clusters, hard, soft

QUESTION = "Q"
# mean log-probabilities whose softmax is 1/2, 1/4, 1/4
ANSWERS = [SampledAnswer("a", math.log(0.5)), SampledAnswer("b", math.log(0.25)), SampledAnswer("c", math.log(0.25))]


class Scripted:
    """NliResults from a table of (premise, hypothesis) without the question; all else is a contradiction."""

    def __init__(self, table):
        self.table = {(f"Q {p}", f"Q {h}"): verdict for (p, h), verdict in table.items()}

    def judge(self, pairs):
        return [
            NliResult("entailment", 1.0) if p == h else self.table.get((p, h), NliResult("contradiction", 0.0))
            for p, h in pairs
        ]


def entails(probability):
    return NliResult("entailment", probability)


def neutral(probability=0.0):
    return NliResult("neutral", probability)


def test_belief_is_a_softmax():
    assert belief(ANSWERS) == pytest.approx([0.5, 0.25, 0.25])
    assert belief([SampledAnswer("x", -1000.0), SampledAnswer("y", -1000.0)]) == [0.5, 0.5]


def test_soft_by_hand():
    judge = Scripted({("a", "r"): entails(0.8), ("r", "a"): neutral(0.3), ("r", "b"): entails(0.6)})
    # k = max(.8, .3), max(0, .6), 0
    assert soft(ANSWERS, ["r"], QUESTION, judge) == pytest.approx(0.5 * 0.8 + 0.25 * 0.6)
    assert soft(ANSWERS, ["r"], QUESTION, judge, kernel="response_entails") == pytest.approx(0.5 * 0.8)


def test_soft_with_two_references_by_hand():
    judge = Scripted(
        {("a", "r"): entails(0.8), ("a", "s"): neutral(0.2), ("b", "s"): entails(0.9), ("s", "c"): neutral(0.4)}
    )
    # k against r: .8, 0, 0; against s: .2, .9, .4
    assert soft(ANSWERS, ["r", "s"], QUESTION, judge) == pytest.approx(0.5 * 0.8 + 0.25 * 0.9 + 0.25 * 0.4)
    mean = 0.5 * (0.8 + 0.2) / 2 + 0.25 * 0.9 / 2 + 0.25 * 0.4 / 2
    assert soft(ANSWERS, ["r", "s"], QUESTION, judge, aggregate="mean") == pytest.approx(mean)


def test_clusters_by_hand():
    both = {("a", "b"): entails(1.0), ("b", "a"): entails(1.0)}
    texts = ["Q a", "Q b", "Q c"]
    assert clusters(texts, Scripted(both)) == [[0, 1], [2]]
    one_way = {("a", "b"): entails(1.0), ("b", "a"): neutral()}
    assert clusters(texts, Scripted(one_way)) == [[0], [1], [2]]
    assert clusters(texts, Scripted(one_way), loose=True) == [[0, 1], [2]]
    assert clusters(texts, Scripted({("a", "b"): neutral(), ("b", "a"): neutral()}), loose=True) == [[0], [1], [2]]


def test_hard_by_hand():
    table = {("a", "b"): entails(1.0), ("b", "a"): entails(1.0), ("a", "r"): entails(0.9), ("r", "a"): neutral()}
    # a and b are one cluster; its first answer matches r loosely
    assert hard(ANSWERS, ["r"], QUESTION, Scripted(table)) == pytest.approx(0.75)
    two = table | {("c", "s"): entails(1.0), ("s", "c"): entails(1.0)}
    assert hard(ANSWERS, ["r", "s"], QUESTION, Scripted(two)) == pytest.approx(1.0)
    assert hard(ANSWERS, ["r", "s"], QUESTION, Scripted(two), aggregate="mean") == pytest.approx(0.75 / 2 + 0.25 / 2)


def test_exact_match_as_entailment():
    answers = [
        SampledAnswer("The  Danube", math.log(0.5)),
        SampledAnswer("danube.", math.log(0.25)),
        SampledAnswer("Rhine", math.log(0.25)),
    ]
    judge = ExactMatch()
    assert soft(answers, ["Danube"], "Which river?", judge) == pytest.approx(0.75)
    assert hard(answers, ["Danube"], "Which river?", judge) == pytest.approx(0.75)
    assert hard(answers, ["Danube", "Rhine"], "Which river?", judge, aggregate="mean") == pytest.approx(0.5)


@pytest.fixture(scope="module")
def deberta(tmp_path_factory):
    """A random DeBERTa-v2 with the reversed label order of the MNLI models."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("deberta")
    bpe = Tokenizer(models.BPE(unk_token="[UNK]"))
    bpe.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    bpe.train_from_iterator(["who made it ann lee port verna q"] * 3, trainers.BpeTrainer(special_tokens=special))
    bpe.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]"
    ).save_pretrained(folder)
    import torch

    torch.manual_seed(0)
    config = DebertaV2Config(
        vocab_size=len(bpe.get_vocab()), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=64, num_labels=3, type_vocab_size=0, pad_token_id=0,
        id2label={0: "ENTAILMENT", 1: "NEUTRAL", 2: "CONTRADICTION"},
    )  # fmt: skip
    DebertaV2ForSequenceClassification(config).save_pretrained(folder)
    return folder


def test_a_real_entailment_model(deberta):
    import torch

    judge = EntailmentModel(str(deberta), batch_tokens=40)
    pairs = [("who made it ann lee", "who made it"), ("ann", "port verna"), ("who made it ann lee", "who made it")]
    verdicts = judge.judge(pairs)
    assert verdicts[0] == verdicts[2] and len(judge.verdicts) == 2
    for (premise, hypothesis), verdict in zip(pairs, verdicts, strict=True):
        inputs = judge.tokenizer(premise, hypothesis, return_tensors="pt")
        with torch.no_grad():
            row = judge.model(**inputs).logits[0].softmax(-1)
        assert verdict.entails == pytest.approx(float(row[0]), abs=1e-5)
        assert verdict.label == ["entailment", "neutral", "contradiction"][int(row.argmax())]


def test_verdicts_do_not_fill_the_memory(deberta, monkeypatch):
    monkeypatch.setattr("scoring.entailment.MAX_KEPT", 1)
    judge = EntailmentModel(str(deberta))
    first = judge.judge([("ann", "port verna"), ("ann", "ann lee")])
    judge.judge([("port verna", "ann")])
    assert list(judge.verdicts) == [("port verna", "ann")]
    assert judge.judge([("ann", "port verna")])[0].entails == pytest.approx(first[0].entails, abs=1e-5)


def test_soft_seper_with_a_real_model_by_hand(deberta):
    import torch

    judge = EntailmentModel(str(deberta))
    expected = 0.0
    for answer, weight in zip(ANSWERS, belief(ANSWERS), strict=True):
        texts = f"{QUESTION} {answer.text}", f"{QUESTION} ann"
        rows = [judge.model(**judge.tokenizer(*pair, return_tensors="pt")).logits[0] for pair in (texts, texts[::-1])]
        expected += weight * max(float(torch.softmax(row, -1)[0]) for row in rows)
    assert soft(ANSWERS, ["ann"], QUESTION, judge) == pytest.approx(expected, abs=1e-5)


def test_a_model_without_the_labels_of_entailment(random_llama, tmp_path, deberta):
    import json
    import shutil

    shutil.copytree(deberta, tmp_path / "m")
    config = json.loads((tmp_path / "m/config.json").read_text())
    config["id2label"] = {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}
    (tmp_path / "m/config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="LABEL_0, LABEL_1, LABEL_2"):
        EntailmentModel(str(tmp_path / "m"))
    with pytest.raises(InputError, match="cannot be loaded"):
        EntailmentModel(str(tmp_path))
