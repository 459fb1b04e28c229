"""Compare how a reward orders the candidates of a turn with how their reciprocal ranks do.

Reads the records of a run and loads no model: `python -m scoring.validity --config C --run RUN`.
"""

from collections.abc import Sequence
from itertools import combinations
from statistics import fmean

from core.artifacts import write_atomic
from core.cli import read_settings
from core.data_sources import data_sources, with_pools
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
from scoring.validity import ValidityFlags

DEPTH = 10  # documents per ranking for the reciprocal ranks
RankedScores = Sequence[tuple[float | None, float]]  # score (None: no score) and reciprocal rank of each candidate


def show_pair_order(flags: ValidityFlags, words: Sequence[str]) -> None:
    """Print how the rewards of a run order the candidates of its labelled turns; `words` override settings."""
    limit = ["--run.limit", str(flags.limit)] if flags.limit else []
    settings = read_settings("", ["--config", str(flags.config), *words, "--run.dir", str(flags.run), *limit])
    table = order_table(pair_orders(settings))
    log.info("\n%s", table)
    if flags.output:
        write_atomic(flags.output / "pair_order.md", table)


def pair_orders(settings: Settings) -> dict[str, dict[str, float | int | None]]:
    """Compute `pair_order` for every reward in the records of the first round.

    Retrieves ten documents for each candidate again, for its reciprocal rank.

    Returns:
        Reward with its answer, such as `key_entropy@logged` -> the result of `pair_order`.

    Raises:
        InputError: the stage is missing or not complete, or no training turn has relevant documents.
    """
    sources = data_sources(settings.data, settings.run.path)
    if settings.data.pool:
        sources = with_pools(sources, settings.run.path)
    turns = {turn.id: turn for turn in load_turns(sources, "train", settings.run.limit) if turn.relevant}
    if not turns:
        raise InputError("no training turn has `relevant` documents, which `--run` needs to compute reciprocal ranks.")
    collections = open_collections(sources, settings.retrieval.cache, settings.data.on_bad)
    retriever = PerDatasetRetriever(settings.retrieval, collections)
    by_reward: dict[str, list[RankedScores]] = {}
    for record in load_stage(settings.run.path, "round-1/scores", TurnRecord):
        turn = turns.get(record.id)
        if turn is None or not record.candidates:
            continue
        rankings = retriever.search([(turn.dataset, candidate.query) for candidate in record.candidates], DEPTH)
        ranks = [reciprocal_rank([hit.doc in turn.gold for hit in hits]) for hits in rankings]
        for name, scores in scores_by_reward(record, settings.scoring).items():
            by_reward.setdefault(name, []).append(list(zip(scores, ranks, strict=True)))
    return {name: pair_order(candidates) for name, candidates in by_reward.items()}


def scores_by_reward(record: TurnRecord, scoring: ScoringSettings) -> dict[str, list[float | None]]:
    """Each candidate's scores by the reward of the run; for a GROGU reward, by all GROGU rewards."""
    if scoring.reward not in grogu.REWARDS:
        return {scoring.reward: [candidate.score for candidate in record.candidates]}
    lists = [record.lists[candidate.list_id] for candidate in record.candidates]
    return {
        f"{reward}@{scoring.answer}": [
            None if score.error or score.stats is None else grogu.score_of(score.stats, "", reward, scoring).value
            for score in lists
        ]
        for reward in grogu.REWARDS
    }


def pair_order(turns: Sequence[RankedScores]) -> dict[str, float | int | None]:
    """Measure how well scores order candidates. Candidates without a score are left out.

    Args:
        turns: for each turn, the score and reciprocal rank of each candidate.

    Returns:
        `pairs`: number of candidate pairs within a turn whose reciprocal ranks differ. `share`: fraction of these
        pairs that the scores order in the same way; equal scores count half. `best`, `worst`, `mean`: reciprocal rank
        of the candidate with the highest score, with the lowest, and of all, averaged over turns; candidates with
        equal scores count with their mean. None if there is nothing to count.

    Example:
        >>> pair_order([[(3.0, 0.5), (1.0, 1.0), (1.0, 0.0)]])["share"]  # wrong, right, tie
        0.5
    """
    columns: dict[str, list[float]] = {"share": [], "best": [], "worst": [], "mean": []}
    for turn in turns:
        scored = [(score, rank) for score, rank in turn if score is not None]
        if not scored:
            continue
        for (score, rank), (other_score, other_rank) in combinations(scored, 2):
            if rank != other_rank:
                agreement = 0.5 if score == other_score else float((score > other_score) == (rank > other_rank))
                columns["share"].append(agreement)
        highest, lowest = max(scored)[0], min(scored)[0]
        columns["best"].append(fmean(rank for score, rank in scored if score == highest))
        columns["worst"].append(fmean(rank for score, rank in scored if score == lowest))
        columns["mean"].append(fmean(rank for _, rank in scored))
    means = {name: fmean(values) if values else None for name, values in columns.items()}
    return {"pairs": len(columns["share"])} | means


def order_table(orders: dict[str, dict[str, float | int | None]]) -> str:
    """Format the results as a Markdown table."""
    header = [
        "reward", "candidate pairs", "ordered as by reciprocal rank", "MRR@10 of the best", "of the worst", "of all",
    ]  # fmt: skip
    rows = [
        [name, str(order["pairs"]), *(format_number(order[key]) for key in ("share", "best", "worst", "mean"))]
        for name, order in orders.items()
    ]
    return markdown_table(header, rows)
