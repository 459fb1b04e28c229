"""Measure the speed of sampling and scoring: batched passes compared with a plain baseline on the same inputs.

    python -m tests.benchmarks.scoring --model models/SmolLM2-135M-Instruct.Q4_1.gguf --data data/mtrag_clapnq
    python -m tests.benchmarks.scoring --case tiny --json scoring.json

smollm2: a real chat model on real conversations (described in `real_model.py`). tiny: the quickstart's model on
quickstart candidates. random: a random Qwen2-shaped model of 30M parameters with 150,000 vocabulary entries, 5
documents of 100 words, 8 candidates per turn. qwen: a random model of Qwen2.5-1.5B's shape, on a GPU in bfloat16.
"""

import argparse
import json
import random
import statistics
import tempfile
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from core.cli import read_settings
from core.data_sources import data_sources
from core.language_model import LanguageModel, load_language_model
from core.records import GenerationInput, RewardInput, TurnRecord
from core.scoring_settings import ScoringSettings
from core.stage_runner import batched
from core.stages import load_stage
from retrieval.collection import open_collections
from rewriter.conversations import load_turns
from scoring.generator import Generator
from scoring.scorer import Scorer
from scoring.scores import BATCH_SIZE
from scoring.udcg import REFUSAL
from tests.benchmarks.real_model import PeakMemory, compare, timed
from tests.oracle import plain_no_res, plain_scores
from train.pipeline import run_pipeline
from train.tiny.conversation import simulate
from train.tiny.entities import World
from train.tiny.world import mixed_kinds

ROOT = Path(__file__).resolve().parents[2]
TURNS = {"tiny": 256, "random": 8, "qwen": 512, "smollm2": 8}
NEW_TOKENS = {"tiny": 16, "random": 32, "qwen": 32}
BATCH_TOKENS = {"tiny": 32768, "random": 16384, "qwen": 131072}
PLAIN_ITEMS = {"tiny": 200, "random": 12, "qwen": 32, "smollm2": 12}
ROUNDS = 3
SHAPES = {
    "random": dict(
        vocab_size=150_000,
        hidden_size=160,
        intermediate_size=640,
        num_hidden_layers=12,
        num_attention_heads=5,
        num_key_value_heads=5,
    ),
    "qwen": dict(
        vocab_size=151_936,
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
    ),
}


def quickstart_inputs(turns: int, folder: Path) -> list[list[GenerationInput]]:
    """Inputs of the candidates of quickstart turns: a list per turn, one input per candidate."""
    flags = ["--run.dir", str(folder), "--run.limit", str(turns), "--run.until", "round-1/rankings"]
    settings = read_settings("", ["--config", str(ROOT / "configs/quickstart.yaml"), *flags])
    run_pipeline(settings)
    sources = data_sources(settings.data, settings.run.path)
    collection = open_collections(sources)[""]
    by_id = load_turns(sources, "train", turns).by_id
    return [
        [
            GenerationInput.of(
                by_id[record.id].history,
                by_id[record.id].question,
                collection.contents([hit.doc for hit in candidate.documents]),
            )
            for candidate in record.candidates
        ]
        for record in load_stage(settings.run.path, "round-1/rankings", TurnRecord)
    ]


def long_inputs(turns: int) -> list[list[GenerationInput]]:
    """8 candidates per turn, each with 5 documents of 100 words from the turn's best 8."""
    rng = random.Random(0)
    world = World(rng, "lm", mixed_kinds(60))
    words = " ".join(passage.text for entity in world.entities for passage in world.passages(entity)).split()
    inputs = []
    for _ in range(turns):
        history, question = list(simulate(world, 4))[-1]
        best = [" ".join(words[start : start + 100]) for start in rng.sample(range(len(words) - 100), 8)]
        inputs.append([GenerationInput.of(history, question.text, rng.sample(best, 5)) for _ in range(8)])
    return inputs


def model_of(case: str) -> LanguageModel:
    """The generator of a case."""
    tiny = load_language_model(str(ROOT / "configs/tiny-model"))
    if case == "tiny":
        return tiny
    torch.manual_seed(0)
    config = Qwen2Config(**SHAPES[case], tie_word_embeddings=True, eos_token_id=1, pad_token_id=0, bos_token_id=None)
    model = Qwen2ForCausalLM(config)
    if case == "qwen":
        model = model.to("cuda", torch.bfloat16)
    return LanguageModel(case, model.eval(), tiny.tokenizer)


def compare_random(case: str, turns: int) -> dict[str, float]:
    """Compare KeyEntropy and UDCG with the plain baseline; medians over rounds."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = quickstart_inputs(turns, Path(folder)) if case == "tiny" else long_inputs(turns)
    lm = model_of(case)
    generator = Generator(lm, NEW_TOKENS[case], BATCH_TOKENS[case])
    scorer, everything = Scorer(generator, ScoringSettings()), [each for job in jobs for each in job]
    sampled = random.Random(0).sample(everything, min(PLAIN_ITEMS[case], len(everything)))
    refusal = lm.tokenizer(REFUSAL, add_special_tokens=False)["input_ids"][:1]
    chunks = [[each for job in part for each in job] for part in batched(jobs, BATCH_SIZE)]

    def udcg(chunk: list[GenerationInput]) -> None:
        scorer.scores([RewardInput(each, (True,) * len(each.documents)) for each in chunk], ["udcg"])

    ways = {
        "key_entropy": (generator.answers, lambda each: plain_scores(generator, each)),
        "udcg": (udcg, lambda each: plain_no_res(lm, each, refusal, "first_token")),
    }
    figures: dict[str, float] = {"items": len(everything)}
    for name, (ours, plain) in ways.items() if case != "qwen" else [("key_entropy", ways["key_entropy"])]:
        ours(chunks[0])
        rounds = []
        for _ in range(ROUNDS):
            with PeakMemory() as memory:
                seconds, _ = timed(lambda ours=ours: [ours(chunk) for chunk in chunks], lm.device)
            plain_s, _ = timed(lambda plain=plain: [plain(each) for each in sampled], lm.device)
            rounds.append((len(everything) / seconds, plain_s / len(sampled) * len(everything) / seconds, memory.mb))
        speed, ratio, peak = (statistics.median(column) for column in zip(*rounds, strict=True))
        figures |= {f"{name}_items_per_s": speed, f"{name}_ratio": ratio, f"{name}_peak_mb": peak}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=TURNS, default="smollm2")
    parser.add_argument("--turns", type=int, help="number of turns")
    parser.add_argument("--model", help="smollm2: folder, Hub id or GGUF file")
    parser.add_argument("--data", type=Path, help="smollm2: folder with turns.jsonl and corpus.jsonl")
    parser.add_argument("--dtype", default="bfloat16", help="smollm2: data type of the weights (default bfloat16)")
    parser.add_argument("--json", type=Path, help="file for the results")
    arguments = parser.parse_args()
    turns = arguments.turns or TURNS[arguments.case]
    if arguments.case == "smollm2":
        if not (arguments.model and arguments.data):
            parser.error("--case smollm2 needs --model and --data")
        figures = compare(arguments.model, arguments.data, turns, PLAIN_ITEMS["smollm2"], arguments.dtype)
    else:
        figures = compare_random(arguments.case, turns)
    print(", ".join(f"{name} {value:.4g}" for name, value in figures.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
