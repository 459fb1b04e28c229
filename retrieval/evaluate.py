"""Evaluate TREC runs: print a table of measures, and compare two runs.

    python -m retrieval.evaluate --run my.run --qrels qrels.txt
    python -m retrieval.evaluate --run new.run --run2 old.run --qrels qrels.txt --by_conversation --json out.json

Queries without a result score 0 and count in the mean. Queries without a relevant document are excluded. Both are
counted. Equal scores are ordered as in trec_eval: by document id, descending.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from core.artifacts import write_json
from core.cli import parse_flags, run_command
from core.errors import InputError
from core.schema import Positive, Validated
from core.tables import markdown_table
from core.trec import Qrels, Run, read_qrels, read_run
from retrieval.metrics import DEFAULT, Comparison, compare_all, per_query


def count_queries(qrels: Qrels, run: Run) -> dict[str, int]:
    """Count queries of the qrels (`queries`), those with a relevant document (`evaluated`), those of them without a
    result (`missing`) or with equal scores (`tied`), and queries of the run without qrels (`unjudged`)."""
    judged = [query for query, docs in qrels.items() if max(docs.values()) >= 1]
    return {
        "queries": len(qrels),
        "evaluated": len(judged),
        "missing": sum(query not in run for query in judged),
        "tied": sum(len({*run[query].values()}) < len(run[query]) for query in judged if query in run),
        "unjudged": sum(query not in qrels for query in run),
    }


def count_line(name: str, counts: dict[str, int]) -> str:
    """Format the counts as one line."""
    without = counts["queries"] - counts["evaluated"]
    return (
        f"{name}: evaluated {counts['evaluated']} of {counts['queries']} queries ({without} without relevant "
        f"documents); {counts['missing']} not in the run score 0, {counts['tied']} have equal scores, "
        f"{counts['unjudged']} of the run have no qrels\n"
    )


def table(means: dict[str, dict[str, float]], comparisons: dict[str, Comparison]) -> str:
    """Markdown table with a row per measure, a column per run, and the comparison."""
    rows = []
    for measure in next(iter(means.values())):
        rows.append([measure, *(f"{values[measure]:.4f}" for values in means.values())])
        if comparison := comparisons.get(measure):
            interval = f"[{comparison.low:+.4f}, {comparison.high:+.4f}]"
            rows[-1] += [f"{comparison.difference:+.4f} {interval}", f"{comparison.p:.4f}"]
    return markdown_table(["measure", *means, *(["difference [95%]", "p"] if comparisons else [])], rows)


def evaluate(
    paths: list[Path], qrels: Qrels, measures: list[str], by_conversation: bool = False, resamples: int = 2000
) -> tuple[dict[str, Any], str]:
    """Evaluate one run, or evaluate and compare two.

    Args:
        paths: TREC runs; differences are first - second.
        qrels: query -> document -> grade.
        measures: names of measures, see `retrieval.metrics.per_query`.
        by_conversation: resample queries together if their ids are equal up to the last `_`.
        resamples: number of bootstrap and randomization resamples.

    Returns:
        The results as a JSON-serializable dict, and the table as text.

    Raises:
        InputError: a file is invalid, or no query has a relevant document.
    """
    same_names = len({path.name for path in paths}) < len(paths)
    values, counts, means, comparisons = {}, {}, {}, {}
    for path in paths:
        name, run = str(path) if same_names else path.name, read_run(path)
        counts[name] = count_queries(qrels, run)
        if not counts[name]["evaluated"]:
            raise InputError("no query of the qrels has a document with grade 1 or above; nothing can be measured.")
        if counts[name]["missing"] == counts[name]["evaluated"]:
            raise InputError(f"{path}: none of its {len(run)} queries has qrels; do the query ids match?")
        values[name] = per_query(qrels, run, measures)
        means[name] = {measure: sum(per.values()) / len(per) for measure, per in values[name].items()}
    if len(paths) == 2:
        first, second = values.values()
        groups = {query: by_conversation and query.rpartition("_")[0] or query for query in next(iter(first.values()))}
        comparisons = compare_all(first, second, groups, resamples)
    figures = {
        "runs": {name: {"measures": means[name], "counts": counts[name]} for name in means},
        "comparison": {measure: asdict(result) for measure, result in comparisons.items()},
    }
    return figures, table(means, comparisons) + "".join(map(count_line, counts, counts.values()))


@dataclass(kw_only=True)
class EvaluateFlags(Validated):
    """Flags of the command.

    Args:
        run: TREC run: query Q0 document rank score tag.
        run2: a second run to compare with.
        qrels: TREC qrels: query 0 document grade.
        measures: measures by name, such as P@5, nDCG(dcg='exp-log2')@3, MAP(retrieved) and all others of ir_measures.
        by_conversation: resample queries together if their ids are equal up to the last `_`.
        resamples: bootstrap and randomization resamples.
        json: also write the results to this file.
    """

    run: Path
    run2: Path | None = None
    qrels: Path
    measures: list[str] = field(default_factory=lambda: list(DEFAULT))
    by_conversation: bool = False
    resamples: Positive = 2000
    json: Path | None = None


def main(argv: list[str] | None = None) -> None:
    flags = parse_flags(EvaluateFlags, __doc__, argv)
    paths = [path for path in (flags.run, flags.run2) if path]
    if flags.json and flags.json.resolve() in [path.resolve() for path in (*paths, flags.qrels)]:
        raise InputError(f"`--json`: {flags.json} is an input file; name another file.")
    figures, text = evaluate(paths, read_qrels(flags.qrels), flags.measures, flags.by_conversation, flags.resamples)
    print(text, end="")
    if flags.json:
        write_json(flags.json, figures)


if __name__ == "__main__":
    run_command(main)
