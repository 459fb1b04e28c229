"""Batches within a token budget: sequences with a common prefix are grouped, batches out of memory are halved."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import torch

from core.errors import InputError, first_line
from core.progress import log

MIN_SHARED = 16  # tokens; a shorter common prefix is not worth a separate pass
MIN_LENGTH_RATIO = 0.5  # sequences shorter than this share of the longest in a batch go into another batch
OUT_OF_MEMORY = (torch.OutOfMemoryError, MemoryError)
OUT_OF_MEMORY_ON_CPU = "can't allocate memory"  # part of the RuntimeError that torch raises on a CPU


@dataclass(frozen=True)
class PrefixGroup:
    """Positions (`members`) of sequences whose first `prefix_length` tokens are the same."""

    prefix_length: int
    members: tuple[int, ...]


def group_by_prefix(sequences: Sequence[list[int]], limits: Sequence[int]) -> list[PrefixGroup]:
    """Group sequences by common prefix, so that few tokens are processed more than once.

    Sorting sequences by token ids walks their prefix trie depth-first, so sequences with a long common prefix are
    neighbours. A sequence joins the previous group if this saves at least as many tokens. A group of one sequence has
    no prefix. `limits` is the maximum prefix length of each sequence.
    """
    groups: list[tuple[int, list[int]]] = []
    for position in sorted(range(len(sequences)), key=sequences.__getitem__):
        if groups:
            prefix_length, members = groups[-1]
            pairs = zip(sequences[members[0]], sequences[position], strict=False)
            most = min(prefix_length, limits[position])
            shared = next((i for i, (a, b) in enumerate(islice(pairs, most)) if a != b), most)
            saved = prefix_length * (len(members) - 1)
            if shared >= MIN_SHARED and shared * len(members) >= saved:
                groups[-1] = shared, [*members, position]
                continue
        groups.append((limits[position], [position]))
    return [PrefixGroup(length if len(members) > 1 else 0, tuple(members)) for length, members in groups]


def batches_by_tokens(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Batches of item positions, longest first, of at most `budget` padded tokens; a longer item is a batch alone."""
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if not batches or (len(batches[-1]) + 1) * lengths[batches[-1][0]] > budget:
            batches.append([])
        batches[-1].append(i)
    return batches


def batch_groups(groups: Sequence[PrefixGroup], costs: Sequence[int], budget: int) -> list[list[PrefixGroup]]:
    """Batch sequences of similar costs after their prefixes, which keeps padding small.

    A group is split if its members differ much in cost or exceed the budget. Each part still shares the prefix.
    """
    parts: list[PrefixGroup] = []
    for group in groups:
        members = sorted(group.members, key=lambda i: (-costs[i], i))
        while members:
            highest = costs[members[0]]
            lowest = group.prefix_length + MIN_LENGTH_RATIO * (highest - group.prefix_length)
            similar, most = sum(costs[i] >= lowest for i in members), max(1, budget // highest)
            for start in range(0, similar, most):
                parts.append(PrefixGroup(group.prefix_length, tuple(members[start : min(start + most, similar)])))
            members = members[similar:]
    batches: list[list[PrefixGroup]] = []
    size = highest = 0
    for part in sorted(parts, key=lambda part: (part.prefix_length - costs[part.members[0]], part.members)):
        highest = max(highest, costs[part.members[0]])
        if not batches or (size + len(part.members)) * highest > budget:
            batches.append([])
            size, highest = 0, costs[part.members[0]]
        batches[-1].append(part)
        size += len(part.members)
    return batches


def run_batched(
    sequences: Sequence[list[int]],
    limits: Sequence[int],
    costs: Sequence[int],
    budget: int,
    process: Callable[[list[PrefixGroup]], None],
) -> int:
    """Process sequences in batches. If one does not fit in memory, it and later ones are limited to half its tokens.

    Args:
        sequences: token ids of each sequence, of any length.
        limits: maximum length of the shared prefix of each sequence.
        costs: tokens of the budget that each sequence uses; at least its length.
        budget: maximum tokens of a batch, sequences times the highest cost; one that costs more is a batch alone.
        process: function that processes one batch.

    Returns:
        The largest budget that fit in memory: `budget`, or less if memory ran out.

    Raises:
        InputError: a single sequence does not fit in memory.
    """
    batches = batch_groups(group_by_prefix(sequences, limits), costs, budget)
    while batches:
        batch = batches.pop(0)
        size = sum(len(group.members) for group in batch)
        try:
            process(batch)
            continue
        except (RuntimeError, MemoryError) as error:
            if not isinstance(error, OUT_OF_MEMORY) and OUT_OF_MEMORY_ON_CPU not in str(error):
                raise
            if size == 1:
                raise InputError(
                    f"a single prompt of {len(sequences[batch[0].members[0]])} tokens does not fit in memory "
                    f"({first_line(error)}). Use fewer or shorter documents (`retrieval.k`, "
                    "`generator.document_tokens`), a smaller model or 16 bits (`dtype: bfloat16`)."
                ) from error
        torch.cuda.empty_cache()  # outside the handler, in which the error still references the failed batch's tensors
        budget = size * max(costs[group.members[0]] for group in batch) // 2
        log.warning(
            "a batch of %d prompts does not fit in memory; from now on, batches are limited to %d tokens instead of "
            "`batch_tokens`", size, budget,
        )  # fmt: skip
        batches = batch_groups([group for groups in (batch, *batches) for group in groups], costs, budget)
    return budget


def use_cores(threads: int | None = None) -> None:
    """Set the number of torch threads, by default this process's share of the cores (`accelerate launch` sets one
    thread for a process on a CPU)."""
    local_processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    # macOS has no `sched_getaffinity`.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(threads or max(1, cores // local_processes))
