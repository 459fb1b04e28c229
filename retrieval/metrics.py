"""Retrieval measures by ir_measures, and paired comparison of two systems."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from core.errors import InputError
from retrieval.trec import Qrels, Run

DEFAULT = ("MRR@10", "MRR", "MAP", "nDCG@3", "R@10", "R@100", "Success@1")


def measure_of(name: str):
    """The ir_measures object of a measure as people call it: `MRR@10` is `RR@10`, `MAP` is `AP`.

    Raises:
        InputError: ir_measures has none by that name.
    """
    import ir_measures

    family, at, cut = name.partition("@")
    known = {"MRR": "RR", "MAP": "AP"}
    try:
        return ir_measures.parse_measure(known.get(family, family) + at + cut)
    except (NameError, ValueError, SyntaxError) as error:
        raise InputError(
            f"`{name}` is no measure that ir_measures knows; examples: {', '.join(DEFAULT)}, P@5."
        ) from error


def per_query(qrels: Qrels, run: Run, names: Sequence[str] = DEFAULT) -> dict[str, dict[str, float]]:
    """Each measure for each query.

    Args:
        qrels: query -> document -> grade; 1 and above is relevant.
        run: query -> document -> score; a query that is missing, or has no document, scores 0.
        names: measures.

    Returns:
        measure -> query -> value, for the queries of `qrels` that have a relevant document.
    """
    import ir_measures

    judged = {query: docs for query, docs in qrels.items() if any(grade >= 1 for grade in docs.values())}
    found = {query: run[query] for query in judged if run.get(query)}
    measures = {measure_of(name): name for name in names}
    values = {name: dict.fromkeys(judged, 0.0) for name in names}
    if found:
        for one in ir_measures.iter_calc(list(measures), judged, found):
            values[measures[one.measure]][one.query_id] = float(one.value)
    return values


@dataclass(frozen=True)
class Comparison:
    """a - b: mean difference, 95% interval (paired bootstrap) and two-sided p-value (paired randomisation)."""

    difference: float
    low: float
    high: float
    p: float


def compare(
    a: Mapping[str, float], b: Mapping[str, float], group_of: Mapping[str, str], resamples: int = 2000, seed: int = 0
) -> Comparison:
    """Compare two systems turn by turn, clustered by conversation.

    Args:
        a: turn -> value of the first system.
        b: the same turns for the second.
        group_of: turn -> conversation; conversations are drawn, and their signs flipped, as a whole.
        resamples: number of bootstrap samples, and of random sign flips.
        seed: of both.

    Returns:
        The comparison; p = (1 + flips at least as far from 0 as what was seen) / (1 + resamples).
    """
    turns = sorted(a)
    groups = {group: number for number, group in enumerate(sorted({group_of[turn] for turn in turns}))}
    member = np.array([groups[group_of[turn]] for turn in turns])
    difference = np.array([a[turn] - b[turn] for turn in turns])
    sums, sizes = np.bincount(member, difference), np.bincount(member).astype(float)
    seen = difference.mean()
    rng = np.random.default_rng(seed)
    means, flips = [], []
    for _ in range(resamples):  # one at a time: memory does not grow with resamples x conversations
        drawn = rng.integers(0, len(sums), len(sums))
        means.append(sums[drawn].sum() / sizes[drawn].sum())
        flips.append(abs((sums * rng.choice((-1.0, 1.0), len(sums))).sum() / len(turns)))
    low, high = np.percentile(means, [2.5, 97.5])
    p = (1 + sum(flip >= abs(seen) - 1e-12 for flip in flips)) / (1 + resamples)
    return Comparison(float(seen), float(low), float(high), float(p))
