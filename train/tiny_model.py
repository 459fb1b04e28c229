"""Make the quickstart's small chat language model from nothing: tokenizer, training, figures.

    python -m train.tiny_model --out configs/tiny-model       # about 90 minutes on 2 cores, minutes on a GPU
    python -m train.tiny_model --out try --steps 20           # a short look
    python -m train.tiny_model --out new --more_of configs/tiny-model --steps 400    # more of the last lessons alone

Stopped at any moment, the same command goes on from the last checkpoint and ends with the same weights.
"""

import argparse
import math
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from core.artifacts import read_json, versions, write_json
from core.cli import run_command
from core.progress import Progress, log, set_up_logging
from train.tiny_lessons import (
    collate,
    encode,
    episode,
    last_episode,
    pieces_of,
    recall,
    records,
    repetition,
    telling_apart,
    tree,
)
from train.tiny_tokenizer import load_chat_tokenizer, make_tokenizer

WARM_UP, DECAY = 100, 0.5  # steps of rising, and last share of falling, learning rate
LAST, LAST_RATE = 0.05, 0.15  # share of the steps for the last lessons; of the learning rate at which they begin
# The levels: repetition; records with up to 0, 1, ... 6 tokens of filler; recall; reading of 2, and of 3 documents.
FILLER = 6
RECALL = FILLER + 2
LAST_LEVEL = RECALL + 2
MASTERED = (0.6, *[0.85] * (FILLER + 1), 0.85, 0.6)  # accuracy at which each level ends
REST = 0.1  # weight of the loss on what is not output; none in repetition, whose noise nothing can predict
LOOK_EVERY, CHECKPOINT_EVERY = 50, 100


class Muon(torch.optim.Optimizer):
    """Momentum whose update is made orthogonal by Newton-Schulz, for weight matrices [out, in].

    https://kellerjordan.github.io/posts/muon/, with the step size matched to AdamW's (0.2 * sqrt(largest side)). As
    `torch.optim.Muon`, but in float32: that one works in bfloat16, which processors without bfloat16 units run 20
    times slower.
    """

    def __init__(self, parameters, lr: float, momentum: float = 0.95, weight_decay: float = 0.01):
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
                update = orthogonal(parameter.grad.lerp(state["momentum"], group["momentum"]))
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update, alpha=-0.2 * max(update.shape) ** 0.5 * group["lr"])


def orthogonal(matrix: Tensor, steps: int = 5) -> Tensor:
    """The nearest orthogonal matrix, roughly: singular values pushed towards 1 by a quintic iteration."""
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def new_model(tokenizer: PreTrainedTokenizerFast, seed: int, width: int = 128, layers: int = 5) -> Qwen2ForCausalLM:
    """A Qwen2 with tied embeddings, random weights, and two heads that look back (`look_back`)."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 32,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation="sdpa",
    )
    model = Qwen2ForCausalLM(config)
    for head, back in enumerate((1, 2)):
        look_back(model, head, back)
    return model


@torch.no_grad()
def look_back(model: Qwen2ForCausalLM, head: int, back: int, strength: float = 40.0) -> None:
    """Let one head of the first layer start out attending to the token `back` places before.

    Copying a name needs to know, at each token, which one came before it. Training finds that by itself, but late.
    Rotary positions turn the biases of query and key by position times frequency: a query bias that lags the key's
    by `back` turns makes their product largest at that distance.

    Args:
        model: a model with biases on its query and key projections.
        head: number of the head.
        back: distance in tokens.
        strength: squared length of the biases at each of the three highest frequencies.
    """
    size = model.config.hidden_size // model.config.num_attention_heads
    attention, theta = model.model.layers[0].self_attn, model.config.rope_parameters["rope_theta"]
    for i in range(3):
        angle, length = -back * theta ** (-2 * i / size), strength**0.5
        first, second = head * size + i, head * size + i + size // 2
        attention.k_proj.bias[first] = length
        attention.q_proj.bias[first], attention.q_proj.bias[second] = (
            length * math.cos(angle),
            length * math.sin(angle),
        )


def loss_of(model: Qwen2ForCausalLM, batch: dict[str, torch.Tensor], rest: float, keep: float = 0.3) -> torch.Tensor:
    """Cross-entropy: weight 1 + `rest` on output tokens, `rest` on the others, of which a share `keep` is drawn."""
    hidden = model.model(
        input_ids=batch["input_ids"], position_ids=batch["position_ids"], attention_mask=batch["mask"], use_cache=False
    ).last_hidden_state
    drawn = (torch.rand_like(batch["output"]) < keep) | (batch["output"] > 0)
    chosen = drawn & (batch["following"] >= 0)
    logits = model.lm_head(hidden[chosen])
    loss = torch.nn.functional.cross_entropy(logits, batch["following"][chosen], reduction="none")
    output = batch["output"][chosen]
    others = 1 - output
    return (loss * output).sum() / output.sum() + rest * (loss * others).sum() / others.sum().clamp(min=1)


def learning_rate(step: int, main: int, steps: int, last_rate: float = LAST_RATE) -> float:
    """Share of the full learning rate: up, level, down to nothing over the share `DECAY` of the `main` steps; then
    the last lessons."""
    if step >= main:
        return last_rate * (steps - step) / (steps - main)
    return min(1.0, (step + 1) / WARM_UP, (main - step) / (DECAY * main))


class Trainer:
    """Training state: model, optimizers, next step.

    The data of a step depend on the seed and the step's number alone, so a run goes on exactly where it was stopped.
    Where `torch.distributed` is set up, every process takes its share of a step's episodes, and gradients are added.
    With `more_of`, the folder of a trained model, it goes on from there with `steps` of the last lessons alone, and
    the saved weights hold a share `keep` of those that it began with (WiSE-FT, arXiv 2109.01903).
    """

    def __init__(
        self, out: Path, seed: int, steps: int, batch: int, lr: float, more_of: Path | None = None, keep: float = 0.0,
        last_rate: float = LAST_RATE,
    ):  # fmt: skip
        self.out, self.seed, self.batch, self.more_of, self.keep = out, seed, batch, more_of, keep
        self.last_rate = last_rate
        self.before = read_json(more_of / "training.json") if more_of else {}
        self.step_number = self.before.get("steps", 0)
        self.steps = self.step_number + steps
        self.main = self.step_number or steps - int(LAST * steps)  # where the last lessons begin
        self.rank, self.world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self.tokenizer = load_chat_tokenizer(more_of) if more_of else make_tokenizer(seed)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if more_of:
            self.model = Qwen2ForCausalLM.from_pretrained(more_of, dtype=torch.float32).to(self.device)
        else:
            self.model = new_model(self.tokenizer, seed).to(self.device)
        self.named = dict(self.model.named_parameters())
        matrices = [p for name, p in self.named.items() if p.ndim == 2 and "embed" not in name]
        others = [p for name, p in self.named.items() if p.ndim != 2 or "embed" in name]
        self.optimizers = [Muon(matrices, lr), torch.optim.AdamW(others, lr / 2, betas=(0.9, 0.98), weight_decay=0.01)]
        self.full = [group["lr"] for optimizer in self.optimizers for group in optimizer.param_groups]
        self.tokens, self.level = self.before.get("tokens", 0), LAST_LEVEL if more_of else 0
        self.seconds = 60 * self.before.get("minutes", 0)  # of earlier lives
        self.start = time.monotonic()  # of this one
        self.pieces = pieces_of(self.tokenizer)
        self.marker = self.tokenizer.convert_tokens_to_ids("<|assistant|>")

    def lesson(self, rng: random.Random, test: bool = False) -> list:
        """An encoded episode of the present level; to `test`, with unseen names, and every answer in the context."""
        if self.level == 0:
            return repetition(rng, self.pieces)
        if self.level < RECALL:
            return records(rng, self.pieces, self.level - 1, self.marker)
        documents = self.level - RECALL + 1 if self.level > RECALL else 0
        if not test and documents and self.step_number >= self.main:
            return encode(self.tokenizer, last_episode(rng, "lm"))
        if not test:
            return encode(self.tokenizer, episode(rng, "lm", documents))
        told = telling_apart(rng, "dev", documents, told=1.0) if documents else recall(rng, "dev")
        return encode(self.tokenizer, told)

    def groups(self, step: int) -> list:
        """This process's share of the encoded episodes of one step, shortest first; short ones are more."""
        rng = random.Random(f"{self.seed} lesson {step}")
        count = self.batch * (4 if self.level < RECALL else 2 if self.level == RECALL else 1)
        made = [self.lesson(rng) for _ in range(count)]
        return sorted(made, key=lambda group: len(tree(group)[0]))[self.rank :: self.world]

    def batch_of(self, groups: list) -> dict[str, Tensor]:
        batch = collate(groups, self.tokenizer.pad_token_id)
        return {key: value.to(self.device) for key, value in batch.items()}

    def step(self) -> float:
        """One update; returns the loss."""
        torch.manual_seed(self.seed * 1_000_003 + self.step_number * self.world + self.rank)
        groups = self.groups(self.step_number)
        size = max(1, len(groups) * self.world // 4 // self.world)
        total, tokens = torch.zeros((), device=self.device), 0
        for start in range(0, len(groups), size):
            batch = self.batch_of(groups[start : start + size])
            share = len(batch["input_ids"]) / len(groups) / self.world
            loss = loss_of(self.model, batch, REST if self.level >= RECALL else 0.0) * share
            loss.backward()
            total += loss.detach()
            tokens += int((batch["following"] >= 0).sum())
        total, tokens = self.add_up(total, tokens)
        self.tokens += tokens
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        share = learning_rate(self.step_number, self.main, self.steps, self.last_rate)
        for group, full in zip((g for o in self.optimizers for g in o.param_groups), self.full, strict=True):
            group["lr"] = full * share
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.step_number += 1
        return total

    def add_up(self, loss: Tensor, tokens: int) -> tuple[float, int]:
        """Add gradients, loss and token count over the processes."""
        if self.world > 1:
            grads = [parameter.grad for parameter in self.model.parameters()]
            flat = torch.cat([*(grad.flatten() for grad in grads), torch.tensor([float(loss), float(tokens)])])
            dist.all_reduce(flat)
            for grad, total in zip(grads, flat[:-2].split([grad.numel() for grad in grads]), strict=True):
                grad.copy_(total.view_as(grad))
            loss, tokens = flat[-2], int(flat[-1])
        return float(loss), tokens

    @torch.inference_mode()
    def accuracy(self, lessons: int = 64) -> float:
        """Share of targets whose every token is the most likely one, in test lessons of the present level."""
        rng, counts = random.Random("accuracy"), torch.zeros(2)
        groups = [self.lesson(rng, test=True) for _ in range(lessons)][self.rank :: self.world]
        for start in range(0, len(groups), 8):
            part = groups[start : start + 8]
            batch = self.batch_of(part)
            inputs = {"input_ids": batch["input_ids"], "position_ids": batch["position_ids"]}
            best = self.model(**inputs, attention_mask=batch["mask"], use_cache=False).logits.argmax(-1)
            good = (best == batch["following"]).cpu()
            for row, group in enumerate(part):
                _, branch, _, _, output = tree(group)
                for number in range(1, len(group) + 1):
                    places = [i for i, (b, o) in enumerate(zip(branch, output, strict=True)) if b == number and o]
                    counts += torch.tensor([bool(good[row, places].all()), 1])
        if self.world > 1:
            dist.all_reduce(counts)
        return float(counts[0] / counts[1])

    def facts(self) -> dict[str, Any]:
        """What the model card tells of the training."""
        return {
            "seed": self.seed,
            "steps": self.steps,
            "batch": self.batch,
            "processes": self.world,
            "tokens": self.tokens,
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "minutes": round((self.seconds + time.monotonic() - self.start) / 60, 1),
            "machine": torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} CPU cores",
            "commit": versions().get("commit", "unknown"),
        } | ({"keep": self.keep, "last_rate": self.last_rate, "before": self.before} if self.before else {})

    @property
    def checkpoint(self) -> Path:
        return self.out / "checkpoint.safetensors"

    def save_checkpoint(self) -> None:
        seconds = int(self.seconds + time.monotonic() - self.start)
        tensors = {"progress": torch.tensor([self.step_number, self.tokens, self.level, seconds])}
        for name, parameter in self.named.items():
            tensors[f"parameter {name}"] = parameter.data
            for optimizer in self.optimizers:
                for key, value in optimizer.state.get(parameter, {}).items():
                    tensors[f"{key} {name}"] = value
        temporary = self.checkpoint.with_suffix(".part")
        save_file({key: value.contiguous() for key, value in tensors.items()}, temporary)
        temporary.replace(self.checkpoint)

    def load_checkpoint(self) -> None:
        tensors = load_file(self.checkpoint, device=str(self.device))
        self.step_number, self.tokens, self.level, self.seconds = tensors.pop("progress").tolist()
        for key, value in tensors.items():
            kind, name = key.split(" ", 1)
            parameter = self.named[name]
            if kind == "parameter":
                parameter.data.copy_(value)
                continue
            owner = next(
                o for o in self.optimizers for g in o.param_groups if any(p is parameter for p in g["params"])
            )
            owner.state[parameter][kind] = value.cpu() if kind == "step" else value

    def save(self) -> None:
        """Write the model in float16 safetensors, with tokenizer and chat template."""
        if self.keep:
            before = Qwen2ForCausalLM.from_pretrained(self.more_of, dtype=torch.float32).to(self.device)
            for name, old in before.named_parameters():
                self.named[name].data.lerp_(old, self.keep)
        self.tokenizer.save_pretrained(self.out)
        self.model.to(torch.float16).save_pretrained(self.out)
        self.model.to(torch.float32)


def carry_out(trainer: Trainer) -> list[float]:
    """Train to the end, from the checkpoint if there is one, and save the model.

    Returns:
        The loss of each step made now.
    """
    trainer.out.mkdir(parents=True, exist_ok=True)
    if trainer.checkpoint.exists():
        trainer.load_checkpoint()
        log.info("going on from step %d", trainer.step_number)
    losses = []
    with Progress("tiny model", trainer.steps - trainer.step_number, "steps") as progress:
        while trainer.step_number < trainer.steps:
            losses.append(trainer.step())
            progress.advance()
            if trainer.step_number % LOOK_EVERY == 0:
                accuracy, recent = trainer.accuracy(), losses[-LOOK_EVERY:]
                log.info(
                    "step %d: loss %.3f, %.1fM tokens, level %d, %.1f%% right", trainer.step_number,
                    sum(recent) / len(recent), trainer.tokens / 1e6, trainer.level, 100 * accuracy,
                )  # fmt: skip
                trainer.level += trainer.level < LAST_LEVEL and accuracy >= MASTERED[trainer.level]
            if trainer.step_number % CHECKPOINT_EVERY == 0 and trainer.rank == 0:
                trainer.save_checkpoint()
    if trainer.rank == 0:
        trainer.save()
        write_json(trainer.out / "training.json", trainer.facts())
        trainer.checkpoint.unlink(missing_ok=True)
    return losses


def trainer_of(arguments: argparse.Namespace) -> Trainer:
    given = vars(arguments)
    return Trainer(
        **{name: given[name] for name in ("out", "seed", "steps", "batch", "lr", "more_of", "keep", "last_rate")}
    )


def work(rank: int, meeting: str, workers: int, arguments: argparse.Namespace) -> None:
    """One of several training processes. Two with one thread each do more than one with two threads, which wait."""
    if rank == 0:
        set_up_logging()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=workers)
    carry_out(trainer_of(arguments))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="model folder")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and data (default 0)")
    parser.add_argument("--steps", type=int, default=5700, help="updates (default 5700)")
    parser.add_argument("--more_of", type=Path, help="trained model to give --steps more of the last lessons")
    parser.add_argument("--keep", type=float, default=0.0, help="share of its weights in the result (default 0)")
    parser.add_argument(
        "--last_rate",
        type=float,
        default=LAST_RATE,
        help=f"share of the learning rate at which the last lessons begin (default {LAST_RATE})",
    )
    parser.add_argument("--batch", type=int, default=16, help="episodes per update (default 16)")
    parser.add_argument("--lr", type=float, default=5e-3, help="learning rate of the weight matrices (default 5e-3)")
    parser.add_argument(
        "--workers", type=int, help="processes (default: 1 with a GPU, else 2 where there are 2 cores)"
    )
    arguments = parser.parse_args()
    set_up_logging()
    workers = arguments.workers or (1 if torch.cuda.is_available() else min(2, os.cpu_count() or 1))
    if workers == 1:
        carry_out(trainer_of(arguments))
    else:
        with tempfile.TemporaryDirectory() as folder:
            multiprocessing.spawn(work, (f"{folder}/meeting", workers, arguments), nprocs=workers)


if __name__ == "__main__":
    run_command(main)
