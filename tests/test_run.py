"""The whole run as a user starts it: every stage, the adapters, a kill in the middle, another model and real text."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow
MODEL = ROOT / "configs/tiny-model"
SMALL = [
    "--run.limit",
    "24",
    "--rewriter.n",
    "4",
    "--rewriter.max_new_tokens",
    "24",
    "--generator.max_new_tokens",
    "8",
]
QUICK = [
    *SMALL,
    "--sft.num_train_epochs",
    "1",
    "--dpo.num_train_epochs",
    "2",
    "--dpo.save_steps",
    "2",
    "--evaluation.resamples",
    "50",
]


def command(run: Path, *more: str) -> list[str]:
    launch = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "train/dpo.py",
        "--config",
        "configs/quickstart.yaml",
    ]
    return [*launch, "--run.dir", str(run), *QUICK, *more]


def finish(words: list[str]) -> str:
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for part in sorted(folder.glob("part-*.jsonl")) for line in part.read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run = tmp_path_factory.mktemp("run") / "whole"
    return run, finish(command(run))


def test_every_stage_is_there_and_says_one_line(whole):
    run, said = whole
    for stage in ("candidates", "rankings", "scores", "pairs", "sft", "dpo", "evaluation"):
        manifest = json.loads((run / stage / "manifest.json").read_text())
        assert {"settings", "inputs", "counts", "seconds", "versions"} <= manifest.keys()
        assert sum(line.startswith(f"{stage}: ") and "->" in line for line in said.splitlines()) == 1
    assert "dpo: reward margin 0 at step 0" in said
    assert "evaluated 24 of 24 turns" in said and "peak memory" in said


def test_the_metrics_file(whole):
    made = json.loads((whole[0] / "evaluation/metrics.json").read_text())
    assert made["turns"] == {"evaluated": 24, "total": 24, "answered": 24}
    assert list(made["systems"]) == ["original", "history", "base", "sft", "dpo", "reference"]
    wanted = {"MRR@10", "MRR", "MAP", "nDCG@3", "R@10", "R@100", "Success@1", "EM", "F1", "contains", "key_entropy"}
    assert all(set(measures) == wanted for measures in made["systems"].values())
    assert made["systems"]["reference"]["MRR@10"] > made["systems"]["base"]["MRR@10"]
    assert {"a", "b", "metric", "difference", "low", "high", "p"} == set(made["comparisons"][0])
    runs = {path.stem for path in (whole[0] / "evaluation").glob("*.run")}
    assert runs == set(made["systems"])


def test_pairs_are_a_trl_data_set(whole):
    from datasets import load_dataset

    rows = load_dataset("json", data_files=str(whole[0] / "pairs/part-0.jsonl"), split="train")
    assert {"id", "prompt", "chosen", "rejected", "score_chosen", "score_rejected", "gap"} <= set(rows.column_names)
    for row in rows:
        assert row["gap"] == row["score_chosen"] - row["score_rejected"] > 0
        assert row["chosen"][0]["role"] == row["rejected"][0]["role"] == "assistant"


def test_the_adapter_loaded_by_peft_gives_the_same_rewrites(whole):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from core.language_model import LanguageModel, load_tokenizer
    from rewriter.conversations import read_turns
    from rewriter.sampling import best_rewrites

    run, _ = whole
    base = AutoModelForCausalLM.from_pretrained(MODEL)
    lm = LanguageModel("x", PeftModel.from_pretrained(base, run / "dpo/adapter").eval(), load_tokenizer(str(MODEL)))
    told = {record["id"]: record["systems"]["dpo"]["query"] for record in lines(run / "evaluation")}
    turns = read_turns(run / "data/test.jsonl", 24)
    assert best_rewrites(lm, turns, 24) == [told[turn.id] for turn in turns]


def test_the_same_command_again_changes_nothing(whole):
    run, _ = whole
    before = (run / "evaluation/metrics.json").read_text()
    said = finish(command(run))
    assert said.count("complete, nothing to do") == 7
    assert (run / "evaluation/metrics.json").read_text() == before


def test_other_settings_do_not_mix(whole):
    done = subprocess.run(
        command(whole[0], "--scoring.alpha", "0.2"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode != 0 and "`settings.alpha` was 0.05, is 0.2" in done.stderr


def test_a_killed_run_goes_on_to_the_same_figures(whole, tmp_path):
    """SIGKILL while candidates, scores and dpo are at work; the run ends as one that was never killed."""
    run = tmp_path / "killed"
    for watched in (
        "candidates/part-0.jsonl",
        "scores/part-0.jsonl",
        "dpo/checkpoints/checkpoint-2/trainer_state.json",
    ):
        process = subprocess.Popen(
            command(run, "--rewriter.batch_tokens", "4096"), cwd=ROOT, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        deadline = time.monotonic() + 200
        while not (run / watched).exists() or not (run / watched).stat().st_size:
            assert process.poll() is None and time.monotonic() < deadline, f"{watched} never came"
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    part = run / "scores/part-0.jsonl"
    assert part.exists()
    finish(command(run, "--rewriter.batch_tokens", "4096"))
    plain = tmp_path / "plain"
    finish(command(plain, "--rewriter.batch_tokens", "4096"))
    for stage in ("candidates", "rankings", "scores", "pairs"):
        assert lines(run / stage) == lines(plain / stage)
    assert (run / "evaluation/table.md").read_text() == (plain / "evaluation/table.md").read_text()


def test_second_round_of_pairs_from_the_sft_rewriter(whole, tmp_path):
    """`pairs.on_policy`: DPO learns from pairs that the SFT rewriter's own samples make."""
    run = tmp_path / "on_policy"
    shutil.copytree(whole[0], run)
    shutil.rmtree(run / "dpo")
    shutil.rmtree(run / "evaluation")
    said = finish(command(run, "--pairs.on_policy", "true", "--run.until", "dpo"))
    assert said.count("complete, nothing to do") == 5 and "second round" in said
    assert lines(run / "on_policy/candidates") != lines(run / "candidates")
    first, second, dpo = (json.loads((run / f"{name}/manifest.json").read_text())
                          for name in ("pairs", "on_policy/pairs", "dpo"))  # fmt: skip
    assert dpo["counts"]["total"] == second["counts"]["kept"]
    assert dpo["inputs"]["pairs"] != json.loads((whole[0] / "dpo/manifest.json").read_text())["inputs"]["pairs"]
    assert first == json.loads((whole[0] / "pairs/manifest.json").read_text())


def test_several_rewards_share_candidates_and_rankings(tmp_path):
    rewards = ["udcg", "delta_seper_hard", "weighted"]
    words = [sys.executable, "-m", "train.compare", "--rewards", *rewards, "--config", "configs/quickstart.yaml"]
    options = ["--run.dir", str(tmp_path / "run"), *QUICK, "--scoring.entailment=exact", "--scoring.samples=3"]
    options += ["--scoring.sample_tokens=8", "--scoring.weights", "{key_entropy: 1.0, answer_logprob: 0.5}"]
    said = finish([*words, *options])
    first = lines(tmp_path / "run/candidates")
    for reward in rewards:
        assert lines(tmp_path / f"run/rewards/{reward}/candidates") == first
        pairs = lines(tmp_path / f"run/rewards/{reward}/pairs")
        assert pairs and all(pair["reward"] == reward and pair["gap"] > 0 for pair in pairs)
    table = (tmp_path / "run/rewards/table.md").read_text()
    assert table in said and all(reward in table for reward in rewards)


def test_qwen_config_on_real_conversations(shared_data, tmp_path):
    """`configs/qwen.yaml` with a tiny random Qwen2 in place of the Hub id: every stage runs on real text."""
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
    said = finish(
        [
            sys.executable, "-m", "accelerate.commands.launch", "train/dpo.py", "--config", "configs/qwen.yaml",
            "--rewriter.model", model, "--generator.model", model, *files, f"--data.corpus={data / 'corpus.jsonl'}",
            "--run.dir", str(tmp_path / "run"), "--run.limit", "20", "--rewriter.dtype", "float32",
            "--generator.dtype", "float32", "--rewriter.n", "3", "--rewriter.max_new_tokens", "8",
            "--generator.max_new_tokens", "4",
            "--evaluation.resamples", "20",
        ]
    )  # fmt: skip
    assert "evaluated 20 of 20 turns" in said
    made = json.loads((tmp_path / "run/evaluation/metrics.json").read_text())
    assert made["systems"]["reference"]["MRR@10"] > 0.1
