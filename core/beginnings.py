"""Prompts that begin alike, planned so that what they share is read once.

Prompts about the same first documents, or of one conversation, share long beginnings. Sorted by their token ids they
are a walk through the tree of these beginnings: each goes on from one before it. Prompts that go on from what has been
read are read together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from core.batches import batches_by_tokens

SHORTEST = 16  # tokens for which a prompt waits for another
WORTH = 0.1  # share of a prompt for which it does
NEAR = 32  # tokens that a row reads again at most, to stand beside rows that share less
EVEN = 0.8  # a pass ends where the next row is shorter than so much of its longest ...
FULL = 600  # ... and the pass has so many tokens


@dataclass(frozen=True)
class Row:
    """A prompt in the order in which prompts are read.

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
    """Prompts that are read at once: all go on from the first `before` tokens of their sources, so that each token
    stands in the slot of its number and none sees a gap. The longest reads `tokens` more."""

    rows: tuple[Row, ...]
    before: int
    tokens: int


def alike(prompts: Sequence[list[int]]) -> list[int]:
    """Positions of prompts in an order in which those that begin alike stand together."""
    return sorted(range(len(prompts)), key=prompts.__getitem__)


def passes_of(prompts: Sequence[list[int]], budget: int, share: bool = True) -> list[Pass]:
    """Plan how a batch of prompts is read: passes in which every source comes before those that go on from it.

    Args:
        prompts: token ids, none empty.
        budget: most tokens of a pass, if a row is not longer.
        share: whether prompts go on from others; else each is read whole.
    """
    passes = []
    for level in levels_of(prompts) if share else [[Row(i, i, 0) for i in range(len(prompts))]]:
        for rows in near(level):
            new = [len(prompts[row.prompt]) - rows[0].start for row in rows]
            order = sorted(range(len(rows)), key=lambda k, new=new: -new[k])
            for some in batches_by_tokens(new, budget, order, EVEN, FULL):
                before = min(rows[k].start for k in some)
                longest = max(len(prompts[rows[k].prompt]) for k in some)
                passes.append(Pass(tuple(rows[k] for k in some), before, longest - before))
    return passes


def near(level: list[Row]) -> list[list[Row]]:
    """Rows that share about as much with their sources, together, those that share least first."""
    groups: list[list[Row]] = []
    for row in sorted(level, key=lambda row: row.start):
        if not groups or row.start > groups[-1][0].start + NEAR:
            groups.append([])
        groups[-1].append(row)
    return groups


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
