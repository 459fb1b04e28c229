"""`configs/own_data.yaml` on real conversations."""

import json
import sys

import pytest

from tests.conftest import finish


@pytest.mark.slow
def test_qwen_config_on_real_conversations(shared_data, tmp_path):
    """`configs/own_data.yaml` with a tiny random Qwen2 in place of the Hub id: every stage runs on real text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    turns = [json.loads(line) for line in (shared_data / "mtrag_clapnq/turns.jsonl").read_text().splitlines()]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        [turn["question"] for turn in turns],
        trainers.BpeTrainer(vocab_size=800, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, pad_token="<|endoftext|>", eos_token="<|im_end|>")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    tokenizer.save_pretrained(tmp_path / "qwen")
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=4096, eos_token_id=2, pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(tmp_path / "qwen")
    data = shared_data / "mtrag_clapnq"
    model, files = str(tmp_path / "qwen"), [f"--data.{which}={data / 'turns.jsonl'}" for which in ("train", "test")]
    output = finish(
        [
            sys.executable, "-m", "accelerate.commands.launch", "train/dpo.py", "--config", "configs/own_data.yaml",
            "--rewriter.model", model, "--generator.model", model, *files, f"--data.corpus={data / 'corpus.jsonl'}",
            "--run.dir", str(tmp_path / "run"), "--run.limit", "20", "--rewriter.dtype", "float32",
            "--generator.dtype", "float32", "--rewriter.n", "3", "--rewriter.max_new_tokens", "8",
            "--generator.max_new_tokens", "4",
            "--evaluation.resamples", "20",
        ]
    )  # fmt: skip
    assert "evaluated 20 turns, 20 of them" in output
    assert "steps are too few to learn from" in output
    metrics = json.loads((tmp_path / "run/evaluation/metrics.json").read_text())
    assert metrics["systems"]["reference"]["MRR@10"] > 0.1
