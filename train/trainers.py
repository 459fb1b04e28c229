"""Subclasses of TRL's trainers: batches of similar length in a reproducible order, and logits at completions only."""

from collections.abc import Iterator, Sequence

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Sampler
from transformers.trainer_pt_utils import get_length_grouped_indices
from trl import DPOTrainer, SFTTrainer

from core.distributed import seed_of
from core.progress import Progress


class LengthGroupedSampler(Sampler[int]):
    """Samples rows so that batches have similar lengths, in an order that depends only on seed and epoch.

    Transformers' own sampler uses the random state of the process, so training that resumes within an epoch would get
    different batches.

    Args:
        lengths: number of tokens of each row.
        batch_size: rows per step.
        seed: seed of the order.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int):
        self.lengths, self.batch_size, self.seed, self.epoch = lengths, batch_size, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(seed_of("batches", self.seed, self.epoch))
        order = get_length_grouped_indices(self.lengths, self.batch_size, generator=generator)
        full = len(order) // self.batch_size
        for number in [*torch.randperm(full, generator=generator).tolist(), full]:  # the incomplete batch comes last
            yield from order[number * self.batch_size : (number + 1) * self.batch_size]


class LengthGrouping:
    """Uses `LengthGroupedSampler` on the column `length` if `train_sampling_strategy` is `group_by_length`."""

    def get_train_dataloader(self) -> DataLoader:
        args = self.args
        grouped = args.train_sampling_strategy == "group_by_length"
        if not grouped or "length" not in self.train_dataset.column_names:  # packed rows have no `length`
            return super().get_train_dataloader()
        rows_of_step = args.train_batch_size * args.gradient_accumulation_steps
        loader = DataLoader(
            self.train_dataset,
            batch_size=args.train_batch_size,
            sampler=LengthGroupedSampler(self.train_dataset["length"][:], rows_of_step, args.seed),
            collate_fn=self.data_collator,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
        )
        return self.accelerator.prepare(loader)


class GroupedDPOTrainer(LengthGrouping, DPOTrainer):
    """TRL's `DPOTrainer` with batches of similar length.

    Args:
        reference_progress: advances while the log-probabilities under the reference are precomputed, which happens
            in the constructor.
    """

    def __init__(self, *args, reference_progress: Progress | None = None, **kwargs):
        self.reference_progress = reference_progress
        super().__init__(*args, **kwargs)

    def compute_ref_log_probs(self, model, inputs):
        chosen, rejected = super().compute_ref_log_probs(model, inputs)
        if self.reference_progress is not None:
            self.reference_progress.advance(len(chosen))
        return chosen, rejected


class GroupedSFTTrainer(LengthGrouping, SFTTrainer):
    """TRL's `SFTTrainer` with batches of similar length, and logits only from a batch's first completion token on.

    On GPUs, TRL computes logits only for completions. On a CPU it also computes them for prompts, which takes nearly
    half the time of a small model with a large vocabulary.
    """

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        if not self.args.use_cpu or self.args.loss_type != "nll" or self.args.label_smoothing_factor:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        labels = inputs["labels"]
        first = int((labels != -100).any(0).nonzero()[0])
        outputs = model(
            **{name: value for name, value in inputs.items() if name != "labels"},
            logits_to_keep=torch.arange(first - 1, labels.shape[1] - 1, device=labels.device),
            use_cache=False,
        )
        targets = labels[:, first:]
        counted = targets != -100
        total = cross_entropy(outputs.logits[counted].float(), targets[counted], reduction="sum")
        loss = total / (counted.sum() if num_items_in_batch is None else num_items_in_batch)
        if num_items_in_batch is not None and self.args.average_tokens_across_devices:
            loss = loss * self.accelerator.num_processes  # items of all processes, whose gradients are averaged
        return (loss, outputs) if return_outputs else loss
