"""Does a reward order the candidates of a turn as their retrieval does? Read from the records of a run, without a
model: `python -m scoring.validity --config C --run RUN`."""

from collections.abc import Sequence
from itertools import combinations
from statistics import fmean

from core.artifacts import write_atomic
from core.cli import read_settings
from core.data_sources import data_sources
from core.errors import InputError
from core.progress import log
from core.records import TurnRecord
from core.scoring_settings import ScoringSettings
from core.settings import Settings
from core.stages import load_stage
from core.tables import format_number, markdown_table
from retrieval.collection import open_collections
from retrieval.engines import PerDatasetRetriever
from rewriter.conversations import load_turns
from scoring import grogu
from scoring.baselines import reciprocal_rank
from scoring.flags import ValidityFlags

DEPTH = 10  # of the rankings from which reciprocal ranks are taken
RankedScores = Sequence[tuple[float | None, float]]  # score (None: no score) and reciprocal rank of each candidate


def show_pair_order(flags: ValidityFlags, words: Sequence[str]) -> None:
    """Print how the rewards of a run order the candidates of its labelled training turns.

    Args:
        flags: of `scoring.validity`.
        words: flags of settings.
    """
    settings = read_settings("", ["--config", str(flags.config), *words, "--run.dir", str(flags.run)])
    table = order_table(pair_orders(settings))
    log.info("\n%s", table)
    if flags.output:
        write_atomic(flags.output / "pair_order.md", table)


def pair_orders(settings: Settings, stage_name: str = "round-1/scores") -> dict[str, dict[str, float | int | None]]:
    """`pair_order` of every reward that the records of a run hold, by its name and answer (`key_entropy@logged`).

    The documents of each candidate are retrieved again, ten deep, for its reciprocal rank.

    Raises:
        InputError: the stage is missing or not complete, or no training turn names a relevant document.
    """
    sources = data_sources(settings.data, settings.run.path)
    turns = {turn.id: turn for turn in load_turns(sources, "train", settings.run.limit) if turn.relevant}
    if not turns:
        raise InputError(
            "the training turns have no `relevant` documents: how rewards order candidates cannot be told."
        )
    collections = open_collections(sources, settings.retrieval.cache, settings.data.on_bad)
    retriever = PerDatasetRetriever(settings.retrieval, collections)
    by_reward: dict[str, list[RankedScores]] = {}
    for record in load_stage(settings.run.path, stage_name, TurnRecord):
        turn = turns.get(record.id)
        if turn is None or not record.candidates:
            continue
        rankings = retriever.search([(turn.dataset, candidate.query) for candidate in record.candidates], DEPTH)
        ranks = [reciprocal_rank([turn.relevant.get(hit.doc, 0) >= 1 for hit in hits]) for hits in rankings]
        for name, scores in scores_by_reward(record, settings.scoring).items():
            by_reward.setdefault(name, []).append(list(zip(scores, ranks, strict=True)))
    return {name: pair_order(candidates) for name, candidates in by_reward.items()}


def scores_by_reward(record: TurnRecord, rule: ScoringSettings) -> dict[str, list[float | None]]:
    """The run's own reward of each candidate, or every GROGU reward where the record holds token statistics."""
    if rule.reward not in grogu.REWARDS:
        return {rule.reward: [candidate.score for candidate in record.candidates]}
    lists = [record.lists[candidate.list_id] for candidate in record.candidates]
    return {
        f"{reward}@{rule.answer}": [
            None if score.error or score.stats is None else grogu.score_of(score.stats, "", reward, rule).value
            for score in lists
        ]
        for reward in grogu.REWARDS
    }


def pair_order(turns: Sequence[RankedScores]) -> dict[str, float | int | None]:
    """How well scores order candidates; those without a score are left out.

    Returns:
        `pairs`: number of candidate pairs of one turn with different reciprocal ranks; `share`: of them that the
        scores order alike, ties of the scores counted half; `best`, `worst` and `mean`: mean reciprocal rank over
        turns of the candidate with the highest score, with the lowest, and of all (candidates with equal scores
        count by their mean). None where there is nothing to count.

    Example:
        >>> pair_order([[(3.0, 0.5), (1.0, 1.0), (1.0, 0.0)]])["share"]  # wrong, right, tie
        0.5
    """
    columns: dict[str, list[float]] = {"share": [], "best": [], "worst": [], "mean": []}
    for turn in turns:
        known = [(score, rank) for score, rank in turn if score is not None]
        if not known:
            continue
        for (score, rank), (other_score, other_rank) in combinations(known, 2):
            if rank != other_rank:
                alike = 0.5 if score == other_score else float((score > other_score) == (rank > other_rank))
                columns["share"].append(alike)
        highest, lowest = max(known)[0], min(known)[0]
        columns["best"].append(fmean(rank for score, rank in known if score == highest))
        columns["worst"].append(fmean(rank for score, rank in known if score == lowest))
        columns["mean"].append(fmean(rank for _, rank in known))
    means = {name: fmean(values) if values else None for name, values in columns.items()}
    return {"pairs": len(columns["share"])} | means


def order_table(orders: dict[str, dict[str, float | int | None]]) -> str:
    """The figures in Markdown."""
    header = [
        "reward", "candidate pairs", "ordered as by reciprocal rank", "MRR@10 of the best", "of the worst", "of all",
    ]  # fmt: skip
    rows = [
        [name, str(order["pairs"]), *(format_number(order[key]) for key in ("share", "best", "worst", "mean"))]
        for name, order in orders.items()
    ]
    return markdown_table(header, rows)
