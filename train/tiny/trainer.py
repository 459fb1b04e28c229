"""The training of the tiny model."""

import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.run import main as torchrun
from transformers import Qwen2ForCausalLM

from core.artifacts import versions, write_json
from core.distributed import process
from core.progress import Progress, log
from train.tiny.curriculum import LEVELS, Curriculum
from train.tiny.model import Muon, new_model
from train.tiny.packing import collate, pack
from train.tiny.tokenizer import make_tokenizer

WARM_UP, DECAY_SHARE = 100, 0.5  # steps of warm-up; share of the steps before the final lessons with decay
FINAL_SHARE, FINAL_RATE = 0.05, 0.15  # share of the steps for the final lessons; factor of their learning rate
EVALUATE_EVERY, CHECKPOINT_EVERY = 50, 100  # steps


def rate_factor(step: int, final_start: int, steps: int) -> float:
    """Learning-rate factor: warm-up, constant, linear decay to 0; then a second decay in the final lessons."""
    if step >= final_start:
        return FINAL_RATE * (steps - step) / (steps - final_start)
    return min(1.0, (step + 1) / WARM_UP, (final_start - step) / (DECAY_SHARE * final_start))


def loss_of(
    model: Qwen2ForCausalLM, inputs: dict[str, Tensor], targets: dict[str, Tensor], prompt_weight: float
) -> Tensor:
    """Mean cross-entropy of the target tokens, plus `prompt_weight` times that of 30% of the prompt tokens."""
    is_target = targets["is_target"]
    sampled = ((torch.rand_like(is_target) < 0.3) | (is_target > 0)) & (targets["labels"] >= 0)
    hidden = model.model(**inputs, use_cache=False).last_hidden_state[sampled]
    loss = torch.nn.functional.cross_entropy(model.lm_head(hidden), targets["labels"][sampled], reduction="none")
    target, prompt = is_target[sampled], 1 - is_target[sampled]
    return (loss * target).sum() / target.sum() + prompt_weight * (loss * prompt).sum() / prompt.sum().clamp(min=1)


class Trainer:
    """Trains the tiny model.

    The data of a step depends on the seed, the level and the number of the step. Several processes share the episodes
    of a step and add their gradients.

    The arguments are flags of `train.tiny.pretrain`. The first levels use a multiple of `batch` episodes, which are
    shorter. Parameters that are not weight matrices use half of the learning rate `lr`.
    """

    def __init__(self, out: Path, seed: int, steps: int, batch: int, lr: float):
        self.out, self.seed, self.steps, self.batch = out, seed, steps, batch
        self.final_start = steps - int(FINAL_SHARE * steps)
        self.step_number = self.level = self.tokens = 0
        self.start, self.checkpoint = time.monotonic(), out / "checkpoint.pt"
        self.rank, self.processes = process()
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.tokenizer = make_tokenizer(seed)
        self.curriculum = Curriculum(self.tokenizer)
        self.model = new_model(self.tokenizer, seed).to(self.device)
        matrices = [p for name, p in self.model.named_parameters() if p.ndim == 2 and "embed" not in name]
        others = [p for name, p in self.model.named_parameters() if p.ndim == 1 or "embed" in name]
        self.optimizers = Muon(matrices, lr), torch.optim.AdamW(others, lr / 2, betas=(0.9, 0.98), weight_decay=0.01)

    def sequences(self) -> list[dict[str, list]]:
        """This process's share of the packed episodes of the next step, shortest first."""
        rng, level = random.Random(f"{self.seed} lesson {self.step_number}"), LEVELS[self.level]
        final = self.step_number >= self.final_start
        packed = [pack(self.curriculum.episode(rng, level, final)) for _ in range(self.batch * level.episodes)]
        return sorted(packed, key=lambda sequence: len(sequence["input_ids"]))[self.rank :: self.processes]

    def sum_over_processes(self, *tensors: Tensor) -> None:
        for tensor in tensors if self.processes > 1 else ():
            dist.all_reduce(tensor)

    def step(self) -> float:
        """Run one update; returns the loss."""
        torch.manual_seed(self.seed * 1_000_003 + self.step_number * self.processes + self.rank)
        sequences, totals = self.sequences(), torch.zeros(2, device=self.device)  # loss, number of tokens
        size = max(1, len(sequences) // 4)
        for start in range(0, len(sequences), size):
            inputs, targets = collate(sequences[start : start + size], self.device)
            share = len(targets["labels"]) / len(sequences) / self.processes
            loss = loss_of(self.model, inputs, targets, LEVELS[self.level].prompt_weight) * share
            loss.backward()
            totals += torch.stack([loss.detach(), (targets["labels"] >= 0).sum()])
        self.sum_over_processes(totals, *(parameter.grad for parameter in self.model.parameters()))
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        factor = rate_factor(self.step_number, self.final_start, self.steps)
        for optimizer in self.optimizers:
            optimizer.param_groups[0]["lr"] = optimizer.defaults["lr"] * factor
            optimizer.step()
            optimizer.zero_grad()
        self.step_number += 1
        self.tokens += int(totals[1])
        return float(totals[0])

    @torch.inference_mode()
    def accuracy(self, episodes: int = 64) -> float:
        """Share of targets in test episodes whose tokens are all the most likely ones, from 0 to 1."""
        rng, counts = random.Random("accuracy"), torch.zeros(2, dtype=torch.long, device=self.device)  # wrong, all
        sequences = [pack(self.curriculum.test_episode(rng, LEVELS[self.level])) for _ in range(episodes)]
        sequences = sequences[self.rank :: self.processes]
        for start in range(0, len(sequences), 8):
            inputs, targets = collate(sequences[start : start + 8], self.device)
            is_target = targets["is_target"] > 0
            is_wrong = is_target & (self.model(**inputs, use_cache=False).logits.argmax(-1) != targets["labels"])
            for branches, *masks in zip(targets["branches"], is_wrong, is_target, strict=True):
                counts += counts.new_tensor([len(branches[mask].unique()) for mask in masks])
        self.sum_over_processes(counts)
        wrong, total = counts.tolist()
        return (total - wrong) / total

    def save_checkpoint(self) -> None:
        progress = self.step_number, self.level, self.tokens, time.monotonic() - self.start
        states = [part.state_dict() for part in (self.model, *self.optimizers)]
        temporary = self.checkpoint.with_suffix(".part")
        torch.save({"progress": progress, "states": states}, temporary)
        temporary.replace(self.checkpoint)

    def load_checkpoint(self) -> None:
        saved = torch.load(self.checkpoint, map_location=self.device, weights_only=True)
        self.step_number, self.level, self.tokens, seconds = saved["progress"]
        self.start = time.monotonic() - seconds
        for part, state in zip((self.model, *self.optimizers), saved["states"], strict=True):
            part.load_state_dict(state)

    def save(self) -> None:
        """Save tokenizer, model (in float16) and `training.json`, which the model card reads."""
        training = {name: getattr(self, name) for name in ("seed", "steps", "batch", "processes", "tokens")} | {
            "parameters": self.model.num_parameters(),
            "minutes": round((time.monotonic() - self.start) / 60, 1),
            "machine": torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} CPU cores",
            "commit": versions().get("commit", "unknown"),
        }
        self.tokenizer.save_pretrained(self.out)
        self.model.to(torch.float16).save_pretrained(self.out)
        write_json(self.out / "training.json", training)

    def train(self) -> None:
        """Train to the end, resuming from the checkpoint if one exists, and save the model."""
        self.out.mkdir(parents=True, exist_ok=True)
        if self.checkpoint.exists():
            self.load_checkpoint()
            log.info("resuming from step %d", self.step_number)
        losses = []
        with Progress("tiny model", self.steps - self.step_number, "steps") as progress:
            while self.step_number < self.steps:
                losses.append(self.step())
                progress.advance()
                if self.step_number % EVALUATE_EVERY == 0:
                    accuracy, recent = self.accuracy(), losses[-EVALUATE_EVERY:]
                    log.info(
                        "step %d: loss %.3f, %.1fM tokens, level %d, %.1f%% right", self.step_number,
                        sum(recent) / len(recent), self.tokens / 1e6, self.level, 100 * accuracy,
                    )  # fmt: skip
                    self.level += accuracy >= LEVELS[self.level].mastery
                if self.step_number % CHECKPOINT_EVERY == 0 and self.rank == 0:
                    self.save_checkpoint()
        if self.rank == 0:
            self.save()
            self.checkpoint.unlink(missing_ok=True)


def train(workers: int | None = None, **options: Any) -> None:
    """Train in this process, or start several processes with `torchrun`.

    Args:
        workers: number of processes; by default 1 with a GPU or one core, else 2. On a CPU, two processes with one
            thread each are faster than one with two threads.
        options: arguments of `Trainer`.
    """
    cores = os.cpu_count() or 1
    workers = workers or (1 if torch.cuda.is_available() else min(2, cores))
    if workers > 1 and process()[1] == 1:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // workers)))
        torchrun(["--standalone", f"--nproc_per_node={workers}", "-m", "train.tiny.pretrain", *sys.argv[1:]])
    else:
        Trainer(**options).train()
