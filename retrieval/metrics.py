"""Retrieval measures with ir_measures, and paired comparison of two systems."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from subprocess import CalledProcessError

import ir_measures
import numpy as np

from core.errors import InputError, first_line
from core.trec import Qrels, Run

DEFAULT = ("MRR@10", "MRR", "MAP", "nDCG@3", "R@10", "R@100", "Success@1")
MAP_RETRIEVED = "MAP(retrieved)"


def parse_measure(name: str, grades: Iterable[int] = ()) -> ir_measures.Measure:
    """Parse the name of a measure of ir_measures; `MRR` and `MAP` are aliases of its `RR` and `AP`.

    Args:
        name: such as `MRR@10`, `nDCG@3`, `nDCG(dcg='exp-log2')@3` (gain 2^grade - 1), `P@5`.
        grades: the grades of the qrels, for the exponential gain.

    Raises:
        InputError: ir_measures has no such measure, or the cutoff is missing.
    """
    family, at, cutoff = name.partition("@")
    try:
        measure = ir_measures.parse_measure({"MRR": "RR", "MAP": "AP"}.get(family, family) + at + cutoff)
        measure.validate_params()
        if not measure.params.get("cutoff", 1) >= 1:
            raise ValueError("the cutoff must be at least 1")
    except (NameError, ValueError, SyntaxError, TypeError, AssertionError) as error:
        raise InputError(
            f"`{name}` is not a measure of ir_measures, or needs a cutoff; examples: {', '.join(DEFAULT)}, P@5."
        ) from error
    if measure.NAME == "nDCG" and measure["dcg"] == "exp-log2":  # trec_eval computes it from gains without rounding
        measure = ir_measures.nDCG(gains={grade: 2**grade - 1 for grade in grades if grade > 0})
        measure = measure @ int(cutoff) if at else measure
    return measure


def calculate(measures: Iterable[ir_measures.Measure], qrels: Qrels, run: Run) -> dict[str, dict[str, float]]:
    """Calculate measures: measure as a string -> query -> value; 0 for a query that is not in the run.

    Raises:
        InputError: ir_measures cannot calculate a measure; the message names the measures and the cause.
    """
    distinct = {str(measure): measure for measure in measures}
    values: dict[str, dict[str, float]] = {name: dict.fromkeys(qrels, 0.0) for name in distinct}
    for gains in (False, True):  # ir_measures applies the gains of one measure to all measures of a call
        group = [measure for measure in distinct.values() if isinstance(measure.params.get("gains"), dict) == gains]
        try:
            for query, measure, value in ir_measures.iter_calc(group, qrels, run) if group and run else ():
                values[str(measure)][query] = float(value)
        except (ValueError, AssertionError, RuntimeError, TypeError, OSError, CalledProcessError) as error:
            raise InputError(
                f"ir_measures cannot calculate {', '.join(map(str, group))}: {first_line(error)}"
            ) from error
    return values


def per_query(qrels: Qrels, run: Run, names: Sequence[str] = DEFAULT) -> dict[str, dict[str, float]]:
    """Calculate the values of measures for each query.

    Args:
        qrels: query -> document -> grade; 1 and above is relevant.
        run: query -> document -> score; a query that is missing or has no document scores 0.
        names: measures; `MAP(retrieved)` divides by the number of retrieved relevant documents, while `MAP` divides by
            the number of all relevant documents of the qrels, as trec_eval does.

    Returns:
        measure -> query -> value, for the queries of `qrels` that have a relevant document.
    """
    qrels = {query: docs for query, docs in qrels.items() if any(grade >= 1 for grade in docs.values())}
    run = {query: run[query] for query in qrels if run.get(query)}
    grades = {grade for docs in qrels.values() for grade in docs.values()}
    cutoffs = {name: int(match[1]) for name in names if (match := re.fullmatch(r"M?RR@(\d+)", name))}
    measures = {
        name: parse_measure("MRR" if name in cutoffs else name, grades) for name in names if name != MAP_RETRIEVED
    }
    parts = [parse_measure("MAP"), parse_measure("NumRet(rel=1)")] if MAP_RETRIEVED in names else []
    values = calculate([*measures.values(), *parts], qrels, run)
    results = {name: values[str(measure)] for name, measure in measures.items()}
    for name, cutoff in cutoffs.items():  # from trec_eval's MRR, which orders ties like the other measures
        results[name] = {query: rr if rr * cutoff >= 1 - 1e-9 else 0.0 for query, rr in results[name].items()}
    if parts:
        average_precision, retrieved = (values[str(part)] for part in parts)
        relevant = {query: sum(grade >= 1 for grade in docs.values()) for query, docs in qrels.items()}
        results[MAP_RETRIEVED] = {
            query: average_precision[query] * relevant[query] / number if number else 0.0
            for query, number in retrieved.items()
        }
    return {name: results[name] for name in names}


@dataclass(frozen=True)
class Comparison:
    """a - b: mean difference, 95% interval (paired bootstrap) and two-sided p-value (paired randomization)."""

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
        b: turn -> value of the second system, for the same turns.
        group_of: turn -> conversation; whole conversations are drawn, and their signs flipped.
        resamples: number of bootstrap samples, and of random sign flips.
        seed: seed of the random numbers.

    Returns:
        The comparison; p = (1 + number of flips at least as far from 0 as the observed difference) / (1 + resamples).
    """
    return compare_all({"": a}, {"": b}, group_of, resamples, seed)[""]


def compare_all(
    a: Mapping[str, Mapping[str, float]],
    b: Mapping[str, Mapping[str, float]],
    group_of: Mapping[str, str],
    resamples: int = 2000,
    seed: int = 0,
) -> dict[str, Comparison]:
    """`compare` for several measures over the same turns: measure -> turn -> value."""
    turns = sorted(next(iter(a.values())))
    sizes, sums = sums_by_group(turns, [[a[m][turn] - b[m][turn] for turn in turns] for m in a], group_of)
    observed = sums.sum(1) / len(turns)
    rng = np.random.default_rng(seed)
    means, flips = [], []
    for _ in range(resamples):  # one at a time, so that memory does not grow with resamples x conversations
        means.append(resampled_mean(rng, sizes, sums))
        flips.append(np.abs(sums @ (2.0 * rng.integers(0, 2, len(sizes), dtype=np.int8) - 1)) / len(turns))
    low, high = np.percentile(means, [2.5, 97.5], axis=0)
    p = (1 + (np.array(flips) >= np.abs(observed) - 1e-12).sum(0)) / (1 + resamples)
    rows = zip(observed, low, high, p, strict=True)
    return {measure: Comparison(*map(float, row)) for measure, row in zip(a, rows, strict=True)}


def mean_interval(
    values: Mapping[str, float], group_of: Mapping[str, str], resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """The 95% bootstrap interval of the mean over turns (turn -> value); whole conversations are drawn."""
    sizes, (sums,) = sums_by_group(list(values), [list(values.values())], group_of)
    rng = np.random.default_rng(seed)
    low, high = np.percentile([resampled_mean(rng, sizes, sums) for _ in range(resamples)], [2.5, 97.5])
    return float(low), float(high)


def sums_by_group(
    turns: Sequence[str], rows: Sequence[Sequence[float]], group_of: Mapping[str, str]
) -> tuple[np.ndarray, np.ndarray]:
    """The number of turns per group [groups], and the sums of each row of values per group [rows, groups]."""
    _, members = np.unique([group_of[turn] for turn in turns], return_inverse=True)
    return np.bincount(members).astype(float), np.array([np.bincount(members, values) for values in rows])


def resampled_mean(rng: np.random.Generator, sizes: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Means over the turns of a bootstrap sample: as many groups as there are, drawn with replacement."""
    counts = np.bincount(rng.integers(0, len(sizes), len(sizes)), minlength=len(sizes))
    return sums @ counts / (sizes @ counts)
