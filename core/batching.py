"""Batches by token budget, grouped by what prompts share at their beginnings; halved where memory runs out."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import torch

from core.errors import InputError, first_line
from core.progress import log

MIN_SHARED = 16  # tokens; a shorter common prefix is not worth a separate pass
MIN_ALIKE = 0.5  # a sequence shorter than this share of the longest beside it goes into another batch
OUT_OF_MEMORY = (torch.OutOfMemoryError, MemoryError)
OUT_OF_MEMORY_ON_CPU = "can't allocate memory"  # in the RuntimeError that torch raises on a CPU


@dataclass(frozen=True)
class PrefixGroup:
    """Sequences that begin with the same `prefix_length` tokens, by their positions."""

    prefix_length: int
    members: tuple[int, ...]


def group_by_prefix(sequences: Sequence[list[int]], limits: Sequence[int]) -> list[PrefixGroup]:
    """Groups of sequences with a common prefix, such that few tokens are read more than once.

    Sorting sequences by token ids walks their prefix trie depth-first, so sequences with a long common prefix are
    neighbours. A sequence joins the group before it if the group then saves more tokens. A group of one sequence has
    no prefix. `limits` has the most tokens of each sequence that may belong to a prefix.
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
    """Positions of items, longest first, in batches of at most `budget` padded tokens; a longer item goes alone."""
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if not batches or (len(batches[-1]) + 1) * lengths[batches[-1][0]] > budget:
            batches.append([])
        batches[-1].append(i)
    return batches


def batch_groups(groups: Sequence[PrefixGroup], lengths: Sequence[int], budget: int) -> list[list[PrefixGroup]]:
    """Batches of sequences whose lengths after their prefixes are alike, so that little of a batch is padding.

    A group whose members differ much in length, or that exceeds the budget, is split; its parts share the prefix
    among themselves.
    """
    parts: list[PrefixGroup] = []
    for group in groups:
        members = sorted(group.members, key=lambda i: (-lengths[i], i))
        while members:
            longest = lengths[members[0]]
            shortest = group.prefix_length + MIN_ALIKE * (longest - group.prefix_length)
            alike, most = sum(lengths[i] >= shortest for i in members), max(1, budget // longest)
            for start in range(0, alike, most):
                parts.append(PrefixGroup(group.prefix_length, tuple(members[start : min(start + most, alike)])))
            members = members[alike:]
    batches: list[list[PrefixGroup]] = []
    size = widest = 0
    for part in sorted(parts, key=lambda part: (part.prefix_length - lengths[part.members[0]], part.members)):
        widest = max(widest, lengths[part.members[0]])
        if not batches or (size + len(part.members)) * widest > budget:
            batches.append([])
            size, widest = 0, lengths[part.members[0]]
        batches[-1].append(part)
        size += len(part.members)
    return batches


def run_batched(
    sequences: Sequence[list[int]],
    limits: Sequence[int],
    lengths: Sequence[int],
    budget: int,
    process: Callable[[list[PrefixGroup]], None],
) -> int:
    """Process sequences in batches; where one does not fit in memory, it and those after it have half its tokens.

    Args:
        sequences: token ids, each of any length.
        limits: most tokens of each sequence that may belong to a shared prefix.
        lengths: size of each sequence in tokens, the room for its output included.
        budget: most tokens of a batch, sequences times the longest; a longer sequence is a batch alone.
        process: takes one batch.

    Returns:
        The budget that every batch fitted in: `budget`, or less where memory ran out.

    Raises:
        InputError: one sequence alone does not fit in memory.
    """
    batches = batch_groups(group_by_prefix(sequences, limits), lengths, budget)
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
                    f"a prompt of {lengths[batch[0].members[0]]} tokens alone does not fit in memory "
                    f"({first_line(error)}). Use fewer or shorter documents (`retrieval.k`, "
                    "`generator.document_tokens`), a smaller model or 16 bits (`dtype: bfloat16`)."
                ) from error
        torch.cuda.empty_cache()  # after the handler: until here the error holds the tensors of the failed batch
        budget = size * max(lengths[group.members[0]] for group in batch) // 2
        log.warning(
            "a batch of %d prompts does not fit in memory; from here on, a batch has at most %d tokens in place of "
            "`batch_tokens`", size, budget,
        )  # fmt: skip
        batches = batch_groups([group for each in (batch, *batches) for group in each], lengths, budget)
    return budget


def use_cores(threads: int | None = None) -> None:
    """Set torch's threads, by default to this process's share of the cores: `accelerate launch` allows a process on a
    CPU one thread."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    torch.set_num_threads(threads or max(1, len(os.sched_getaffinity(0)) // here))
