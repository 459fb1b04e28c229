"""Prompts that begin alike, planned so that what they share is read once.

Prompts about the same first documents, or of one conversation, share long beginnings. Sorted by their token ids they
are a walk through the tree of these beginnings: each goes on from one before it. Prompts that go on from what has been
read are read together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from core.batches import batches_by_tokens

SHORTEST = 16  # tokens for which a prompt waits for another
WORTH = 0.1  # share of a prompt for which it does; what is before a row costs its attention a mask
EVEN = 0.8  # a pass ends where the next row is shorter than so much of its longest ...
FULL = 300  # ... and the pass has so many tokens


@dataclass(frozen=True)
class Row:
    """What is read of one prompt in a pass.

    Args:
        prompt: its number.
        source: number of the prompt from which it goes on; its own where it is read whole.
        start: tokens that it shares with the source, in [0, tokens of the prompt).
    """

    prompt: int
    source: int
    start: int


@dataclass(frozen=True)
class Pass:
    """Rows that are read at once. The cache holds what they go on from in slots [0, `before`), and what they read, the
    longest of them `tokens`, in those that follow."""

    rows: tuple[Row, ...]
    before: int
    tokens: int


def alike(prompts: Sequence[list[int]]) -> list[int]:
    """Positions of prompts in an order in which those that begin alike stand together."""
    return sorted(range(len(prompts)), key=prompts.__getitem__)


def passes_of(
    prompts: Sequence[list[int]], budget: int, share: bool = True
) -> tuple[list[Pass], list[list[tuple[int, int]]]]:
    """Plan how a batch of prompts is read.

    Args:
        prompts: token ids, none empty.
        budget: most tokens of a pass, if a row is not longer.
        share: whether prompts go on from others; else each is read whole.

    Returns:
        The passes, in which every source comes before those that go on from it, and for each prompt the runs of its
        tokens: from which token on they stand from which slot on.
    """
    runs: list[list[tuple[int, int]]] = [[] for _ in prompts]
    passes = []
    for level in levels_of(prompts) if share else [[Row(i, i, 0) for i in range(len(prompts))]]:
        new = [len(prompts[row.prompt]) - row.start for row in level]
        order = sorted(range(len(level)), key=lambda k, new=new, level=level: (-new[k], level[k].start))
        for some in batches_by_tokens(new, budget, order, EVEN, FULL):
            rows = tuple(level[k] for k in some)
            before = max(slot_after(runs[row.source], row.start) for row in rows)
            for row in rows:
                kept = [run for run in runs[row.source] if run[0] < row.start]
                runs[row.prompt] = [*kept, (row.start, before)]
            passes.append(Pass(rows, before, max(new[k] for k in some)))
    return passes, runs


def slot_after(runs: list[tuple[int, int]], tokens: int) -> int:
    """The slot after the first so many tokens of a prompt."""
    return max((slot + tokens - token for token, slot in runs if token < tokens), default=0)


def levels_of(prompts: Sequence[list[int]]) -> list[list[Row]]:
    """Rows whose sources stand in earlier levels; those of the first level are read whole."""
    levels: list[list[Row]] = []
    path: list[tuple[int, int, int]] = []  # prompts that the last one goes on from: (token, number, level)
    last: list[int] = []
    for number in alike(prompts):
        prompt = prompts[number]
        shared = min(agreement(last, prompt), len(prompt) - 1)
        path = [step for step in path if step[0] < shared] if shared >= SHORTEST else []
        ends = [token for token, _, _ in path[1:]] + [shared]
        sources = [(level, -end, source) for (_, source, level), end in zip(path, ends, strict=False)]
        enough = max(shared - SHORTEST, WORTH * len(prompt))
        # of those that share nearly as much, the one that is read first
        level, end, source = min((found for found in sources if -found[1] > enough), default=(-1, 0, number))
        levels += [[] for _ in range(level + 2 - len(levels))]
        levels[level + 1].append(Row(number, source, -end))
        path.append((shared if path else 0, number, level + 1))
        last = prompt
    return levels


def agreement(one: list[int], other: list[int]) -> int:
    """Number of tokens with which both begin."""
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        if one[least:middle] == other[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least
