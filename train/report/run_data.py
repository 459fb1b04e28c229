"""Read the data of a report from the files of a run folder."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.artifacts import read_json, read_json_lines
from core.records import Candidate, EvaluationRecord, Pair, Turn, TurnRecord
from core.stages import Stage, load_stage
from train.pairs import best_and_worst
from train.report_tables import SHOWN
from train.run import EVALUATION, Run, stage_names

TRAINING = ("sft", "dpo")


@dataclass
class Rewards:
    """The rewards of one round.

    Args:
        scores: scores of all candidates.
        gaps: gap between best and worst candidate, for each turn where they differ.
        smallest_kept: smallest gap of the kept pairs.
        hits: for each pair of a labeled turn, whether the `chosen` and the `rejected` rewrite retrieve a relevant
            document.
        by_rank: rank of the first relevant document (0: none) -> scores.
    """

    scores: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    smallest_kept: float | None = None
    hits: dict[str, list[bool]] = field(default_factory=lambda: {"chosen": [], "rejected": []})
    by_rank: dict[int, list[float]] = field(default_factory=dict)


@dataclass
class Round:
    """One round: its number, counts by stage, rewards, and training logs (stage -> entries of TRL's log)."""

    number: int
    counts: dict[str, dict[str, Any]]
    rewards: Rewards | None
    logs: dict[str, list[dict[str, Any]]]
    lengths: dict[str, list[int]]  # number of words in the chosen and in the rejected rewrites


@dataclass
class RunData:
    """The data of a run for the report.

    `stages` contains the manifests of the complete stages. `metrics`, `per_turn` and `records` come from the
    evaluation, and are empty without one.
    """

    run: Run
    stages: dict[str, dict[str, Any]]
    rounds: list[Round]
    metrics: dict[str, Any]
    per_turn: dict[str, dict[str, dict[str, Any]]]  # system -> turn -> line of `per_turn.jsonl`
    records: dict[str, EvaluationRecord]

    @property
    def systems(self) -> dict[str, dict[str, float]]:
        """System -> measure -> mean."""
        return self.metrics.get("systems", {})

    @property
    def final(self) -> str | None:
        """The last trained system of the evaluation."""
        return next((name for name in ("dpo", "sft") if name in self.systems), None)

    @property
    def baseline(self) -> str | None:
        """The baseline of the verdict: the untrained rewriter, else the unchanged question."""
        return next((name for name in ("base", "original") if name in self.systems), None)

    @property
    def measure(self) -> str | None:
        """The measure of the verdict: MRR@10 if passages are labeled, else EM, else the reward."""
        results = self.systems.get(self.final, {})
        return next((name for name in ("MRR@10", "EM", self.metrics.get("reward")) if name in results), None)

    @property
    def measures(self) -> list[str]:
        """The measures to show in the tables."""
        names = dict.fromkeys((*SHOWN, self.metrics.get("reward")))
        return [name for name in names if any(name in values for values in self.systems.values())]

    def comparison(self, a: str, b: str, measure: str) -> dict[str, Any] | None:
        """The evaluation's comparison of two systems; None if it has none."""
        rows = self.metrics.get("comparisons", [])
        return next((r for r in rows if (r["a"], r["b"], r["metric"]) == (a, b, measure)), None)


def load_run(run: Run) -> RunData:
    """Read the files of a run. Skips stages that are not complete."""
    rounds = run.settings.train.rounds
    manifests = {name: run.path / name / "manifest.json" for name in stage_names(rounds)}
    stages = {
        name: read_json(path, "counts", "seconds", "peak_memory_mb", "versions")
        for name, path in manifests.items()
        if path.exists()
    }
    metrics, per_turn, records = {}, {}, {}
    if EVALUATION in stages:
        metrics = read_json(run.path / "evaluation/metrics.json", "systems", "comparisons")
        for _, line in read_json_lines(run.path / "evaluation/per_turn.jsonl"):
            per_turn.setdefault(line["system"], {})[line["id"]] = line
        records = {record.id: record for record in load_stage(run.path, EVALUATION, EvaluationRecord)}
    loaded = [load_round(run, number, stages) for number in range(1, rounds + 1)]
    return RunData(run, stages, loaded, metrics, per_turn, records)


def load_round(run: Run, number: int, stages: Mapping[str, dict[str, Any]]) -> Round:
    """Read the complete stages of one round."""
    prefix = f"round-{number}/"
    counts = {name.removeprefix(prefix): stages[name]["counts"] for name in stages if name.startswith(prefix)}
    rewards, lengths = None, {}
    if "scores" in counts:
        pairs: list[Pair] = list(load_stage(run.path, prefix + "pairs", Pair)) if "pairs" in counts else []
        rewards = load_rewards(load_stage(run.path, prefix + "scores", TurnRecord), pairs, run.train_turns.by_id)
        lengths = {
            side: [len(getattr(pair, side)[0]["content"].split()) for pair in pairs] for side in ("chosen", "rejected")
        }
    logs = {n: json.loads((run.path / prefix / n / "log.json").read_text()) for n in TRAINING if n in counts}
    return Round(number, counts, rewards, logs, lengths)


def load_rewards(scores: Stage, pairs: list[Pair], turns: Mapping[str, Turn]) -> Rewards:
    """Collect the rewards of one round from its scores stage, the kept pairs, and the training turns by id."""
    rewards = Rewards(smallest_kept=min((pair.gap for pair in pairs), default=None))
    kept = {pair.id for pair in pairs}
    for record in scores:
        gold = turns[record.id].gold
        for candidate in record.candidates:
            if candidate.score is not None:
                rewards.scores.append(candidate.score)
                if gold:
                    rewards.by_rank.setdefault(first_rank(candidate, gold), []).append(candidate.score)
        pair = best_and_worst(record.candidates)
        if isinstance(pair, str):
            continue
        rewards.gaps.append(pair[0].score - pair[1].score)
        if gold and record.id in kept:
            for side, candidate in zip(("chosen", "rejected"), pair, strict=True):
                rewards.hits[side].append(first_rank(candidate, gold) > 0)
    return rewards


def first_rank(candidate: Candidate, gold: Sequence[str]) -> int:
    """The rank of the first relevant document of a candidate; 0 if it has none."""
    return next((rank for rank, hit in enumerate(candidate.documents, 1) if hit.doc in gold), 0)
