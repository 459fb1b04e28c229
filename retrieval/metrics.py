"""Retrieval measures by ir_measures, and paired comparison of two systems."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from subprocess import CalledProcessError

import numpy as np

from core.errors import InputError, first_line
from core.trec import Qrels, Run

DEFAULT = ("MRR@10", "MRR", "MAP", "nDCG@3", "R@10", "R@100", "Success@1")
RETRIEVED = "MAP(retrieved)"


def measure_of(name: str, grades: Iterable[int] = ()):
    """The ir_measures object of a measure as people call it: `MRR@10` is `RR@10`, `MAP` is `AP`.

    Args:
        name: such as `MRR@10`, `nDCG@3`, `nDCG(dcg='exp-log2')@3` (gain 2^grade - 1), `P@5`.
        grades: the grades of the qrels, for the exponential gain.

    Raises:
        InputError: ir_measures has none by that name.
    """
    import ir_measures

    family, at, cut = name.partition("@")
    known = {"MRR": "RR", "MAP": "AP"}
    try:
        measure = ir_measures.parse_measure(known.get(family, family) + at + cut)
        measure.validate_params()
        if not measure.params.get("cutoff", 1) >= 1:
            raise ValueError("its cutoff must be at least 1")
    except (NameError, ValueError, SyntaxError, TypeError, AssertionError) as error:
        raise InputError(
            f"`{name}` is no measure that ir_measures knows, or lacks a cutoff; examples: {', '.join(DEFAULT)}, P@5."
        ) from error
    if measure.NAME == "nDCG" and measure["dcg"] == "exp-log2":  # as gains: trec_eval's code, no rounding
        gains = ir_measures.nDCG(gains={grade: 2**grade - 1 for grade in grades if grade > 0})
        measure = gains @ int(cut) if at else gains
    return measure


def calculated(measures: list, judged: Qrels, found: Run) -> Iterator[tuple]:
    """Measure, query and value of each.

    Raises:
        InputError: ir_measures cannot calculate one of them; names them and the cause.
    """
    import ir_measures

    if not measures:
        return
    try:
        # `iter_calc` would also look for queries without a value, which takes a third of the time; ours begin with 0
        for one in ir_measures.evaluator(measures, judged)._iter_calc(found):
            yield one.measure, one.query_id, one.value
    except (ValueError, AssertionError, RuntimeError, TypeError, OSError, CalledProcessError) as error:
        raise InputError(
            f"ir_measures cannot calculate {', '.join(map(str, measures))}: {first_line(error)}"
        ) from error


def per_query(qrels: Qrels, run: Run, names: Sequence[str] = DEFAULT) -> dict[str, dict[str, float]]:
    """Each measure for each query.

    Args:
        qrels: query -> document -> grade; 1 and above is relevant.
        run: query -> document -> score; a query that is missing, or has no document, scores 0.
        names: measures; `MAP(retrieved)` divides by the relevant documents that were retrieved, where `MAP` divides by
            all of the qrels, as trec_eval does.

    Returns:
        measure -> query -> value, for the queries of `qrels` that have a relevant document.
    """
    judged = {query: docs for query, docs in qrels.items() if any(grade >= 1 for grade in docs.values())}
    found = {query: run[query] for query in judged if run.get(query)}
    grades = {grade for docs in judged.values() for grade in docs.values()}
    measures = {name: measure_of(name, grades) for name in names if name != RETRIEVED}
    if RETRIEVED in names:
        measures |= {"MAP": measure_of("MAP"), "found": measure_of("NumRet(rel=1)")}
    plain_cut = {name: re.fullmatch(r"M?RR@(\d+)", name) for name in measures}
    cut = {name: int(found_cut[1]) for name, found_cut in plain_cut.items() if found_cut}
    measures |= {name: measure_of("MRR") for name in cut}  # trec_eval's, cut here: the other provider is slow
    values = {name: dict.fromkeys(judged, 0.0) for name in [*names, *measures]}
    called: dict[str, list[str]] = {}
    for name, measure in measures.items():
        called.setdefault(str(measure), []).append(name)
    distinct = {text: measures[some[0]] for text, some in called.items()}
    own_gains = {t: m for t, m in distinct.items() if m.NAME == "nDCG" and isinstance(m["gains"], dict)}
    others = {t: m for t, m in distinct.items() if t not in own_gains}
    names_of = {id(measure): called[text] for text, measure in distinct.items()}  # writing a measure out takes long
    for some in (others, own_gains) if found else ():  # together, ir_measures mixes their gains up
        for measure, query, value in calculated(list(some.values()), judged, found):
            for name in names_of.get(id(measure)) or called[str(measure)]:
                values[name][query] = float(value)
    for name, depth in cut.items():
        values[name] = {query: value if value * depth >= 1 - 1e-9 else 0.0 for query, value in values[name].items()}
    if RETRIEVED in names:
        for query, docs in judged.items():
            relevant = sum(grade >= 1 for grade in docs.values())
            hits = values["found"][query]
            values[RETRIEVED][query] = values["MAP"][query] * relevant / hits if hits else 0.0
    return {name: values[name] for name in names}


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
    groups = {group: number for number, group in enumerate(sorted({group_of[turn] for turn in turns}))}
    member = np.array([groups[group_of[turn]] for turn in turns])
    sizes = np.bincount(member).astype(float)
    sums = np.array(
        [np.bincount(member, [a[m][turn] - b[m][turn] for turn in turns]) for m in a]
    )  # [measures, groups]
    seen = sums.sum(1) / len(turns)
    rng = np.random.default_rng(seed)
    means, flips = [], []
    for _ in range(resamples):  # one at a time: memory does not grow with resamples x conversations
        drawn = np.bincount(rng.integers(0, len(sizes), len(sizes)), minlength=len(sizes))
        means.append(sums @ drawn / (sizes @ drawn))
        flips.append(np.abs(sums @ (2.0 * rng.integers(0, 2, len(sizes), dtype=np.int8) - 1)) / len(turns))
    low, high = np.percentile(means, [2.5, 97.5], axis=0)
    p = (1 + (np.array(flips) >= np.abs(seen) - 1e-12).sum(0)) / (1 + resamples)
    return {
        measure: Comparison(*map(float, row))
        for measure, row in zip(a, zip(seen, low, high, p, strict=True), strict=True)
    }
