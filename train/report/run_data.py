"""What a report shows of a run, read from the files of its folder."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.artifacts import read_json, read_json_lines
from core.records import EvaluationRecord, Pair, Turn, TurnRecord
from core.settings import Settings
from core.stages import Stage, load_stage
from train.pairs import best_and_worst

TRAINING = ("sft", "dpo")


@dataclass
class StageFigures:
    """A complete stage: its counts, seconds and peak memory in MB, and the versions of the libraries."""

    name: str
    counts: dict[str, Any]
    seconds: float
    peak_memory_mb: float
    versions: dict[str, str]


@dataclass
class Rewards:
    """The scores of the candidates of one round.

    `scores`: of all candidates. `gaps`: of best and worst candidate, for each turn that has two; `smallest_kept`: the
    smallest gap of a pair that is kept. `hit_rates`: share of turns with labels in which the documents of the chosen,
    and of the rejected, candidate hold a relevant one. `by_rank`: rank of the first relevant document (0: none) ->
    scores. `abstaining` of `lists` document lists made the generator abstain.
    """

    scores: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    smallest_kept: float | None = None
    hits: dict[str, list[bool]] = field(default_factory=lambda: {"chosen": [], "rejected": []})
    by_rank: dict[int, list[float]] = field(default_factory=dict)
    abstaining: int = 0
    lists: int = 0


@dataclass
class Round:
    """One round: its number, counts by stage, rewards, and training logs (stage -> entries of TRL's log)."""

    number: int
    counts: dict[str, dict[str, Any]]
    rewards: Rewards | None
    logs: dict[str, list[dict[str, Any]]]
    lengths: dict[str, list[int]]  # words of the chosen and of the rejected rewrites


@dataclass
class RunData:
    """A run as a report shows it.

    `metrics` and `per_turn` are those of the evaluation, empty where there is none yet; `records` are its records.
    """

    path: Path
    settings: Settings
    command: str
    stages: list[StageFigures]
    rounds: list[Round]
    metrics: dict[str, Any]
    per_turn: dict[str, dict[str, dict[str, Any]]]  # system -> turn -> line of `per_turn.jsonl`
    records: dict[str, EvaluationRecord]

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def final(self) -> str | None:
        """The last trained system of the evaluation."""
        systems = self.metrics.get("systems", {})
        return next((name for name in ("dpo", "sft") if name in systems), None)

    @property
    def baseline(self) -> str | None:
        """What the verdict compares with: the untrained rewriter, else the question as it is."""
        systems = self.metrics.get("systems", {})
        return next((name for name in ("base", "original") if name in systems), None)

    @property
    def measure(self) -> str | None:
        """The measure of the verdict: MRR@10 where passages are labelled, else EM, else the reward."""
        known = self.metrics.get("systems", {}).get(self.final or "", {})
        return next((name for name in ("MRR@10", "EM", self.metrics.get("reward")) if name in known), None)

    def comparison(self, a: str, b: str, measure: str) -> dict[str, Any] | None:
        """A row of the comparisons of the evaluation."""
        rows = self.metrics.get("comparisons", [])
        return next((r for r in rows if (r["a"], r["b"], r["metric"]) == (a, b, measure)), None)


def load_run(path: Path, settings: Settings, command: str, turns: Mapping[str, Turn]) -> RunData:
    """Read the files of a run. Stages that are not complete are left out.

    Args:
        path: the run folder.
        settings: of the run.
        command: that made it.
        turns: id -> training turn, for its labels.
    """
    stages = []
    for manifest in sorted(path.glob("*/manifest.json")) + sorted(path.glob("round-*/*/manifest.json")):
        values = read_json(manifest, "counts", "seconds", "versions")
        name = str(manifest.parent.relative_to(path))
        memory = values.get("peak_memory_mb", 0.0)
        stages.append(StageFigures(name, values["counts"], values["seconds"], memory, values["versions"]))
    complete = {stage.name: stage for stage in stages}
    rounds = [load_round(path, number, complete, turns) for number in range(1, settings.train.rounds + 1)]
    metrics, per_turn, records = {}, {}, {}
    if "evaluation" in complete:
        metrics = read_json(path / "evaluation/metrics.json", "systems", "comparisons")
        for _, line in read_json_lines(path / "evaluation/per_turn.jsonl"):
            per_turn.setdefault(line["system"], {})[line["id"]] = line
        records = {record.id: record for record in load_stage(path, "evaluation", EvaluationRecord)}
    return RunData(path, settings, command, in_order(stages), rounds, metrics, per_turn, records)


def in_order(stages: list[StageFigures]) -> list[StageFigures]:
    """Stages in the order in which they are made."""
    order = ("candidates", "rankings", "scores", "pairs", "sft", "dpo")

    def position(stage: StageFigures) -> tuple[int, int]:
        number, _, name = stage.name.removeprefix("round-").partition("/")
        return (int(number), order.index(name)) if name else (10**9, 0)

    return sorted(stages, key=position)


def load_round(path: Path, number: int, complete: Mapping[str, StageFigures], turns: Mapping[str, Turn]) -> Round:
    """The complete stages of one round."""
    prefix = f"round-{number}/"
    counts = {name.removeprefix(prefix): stage.counts for name, stage in complete.items() if name.startswith(prefix)}
    rewards, lengths = None, {}
    if "scores" in counts:
        pairs: list[Pair] = list(load_stage(path, prefix + "pairs", Pair)) if "pairs" in counts else []
        rewards = load_rewards(load_stage(path, prefix + "scores", TurnRecord), pairs, turns)
        lengths = {
            side: [len(getattr(pair, side)[0]["content"].split()) for pair in pairs] for side in ("chosen", "rejected")
        }
    logs = {name: json.loads((path / prefix / name / "log.json").read_text()) for name in TRAINING if name in counts}
    return Round(number, counts, rewards, logs, lengths)


def load_rewards(scores: Stage, pairs: list[Pair], turns: Mapping[str, Turn]) -> Rewards:
    """The scores of one round.

    Args:
        scores: the stage, complete.
        pairs: that are kept.
        turns: id -> training turn.
    """
    rewards = Rewards(smallest_kept=min((pair.gap for pair in pairs), default=None))
    kept = {pair.id for pair in pairs}
    for record in scores:
        relevant = {doc for doc, grade in turns[record.id].relevant.items() if grade >= 1}
        rewards.lists += len(record.lists)
        rewards.abstaining += sum(score.abstains for score in record.lists.values())
        ranks = []
        for candidate in record.candidates:
            documents = [hit.doc for hit in candidate.documents]
            ranks.append(next((i for i, doc in enumerate(documents, 1) if doc in relevant), 0))
            if candidate.score is not None:
                rewards.scores.append(candidate.score)
                if relevant:
                    rewards.by_rank.setdefault(ranks[-1], []).append(candidate.score)
        pair = best_and_worst(record.candidates)
        if isinstance(pair, str):
            continue
        rewards.gaps.append(pair[0].score - pair[1].score)
        if relevant and record.id in kept:
            for side, candidate in zip(("chosen", "rejected"), pair, strict=True):
                rewards.hits[side].append(ranks[record.candidates.index(candidate)] > 0)
    return rewards
