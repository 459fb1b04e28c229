"""What a report shows of a run, read from the files of its folder."""

import json
from collections.abc import Mapping
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
    """The scores of the candidates of one round.

    `scores`: of all candidates. `gaps`: of best and worst candidate, for each turn that has two; `smallest_kept`: the
    smallest gap of a pair that is kept. `hits`: whether the documents of the chosen, and of the rejected, candidate
    hold a relevant one, for each pair of a turn with labels. `by_rank`: rank of the first relevant document (0: none)
    -> scores. `abstaining` of `lists` document lists made the generator abstain.
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

    `stages` are the manifests of the complete stages. `metrics`, `per_turn` and `records` are those of the evaluation,
    empty where there is none yet.
    """

    run: Run
    stages: dict[str, dict[str, Any]]
    rounds: list[Round]
    metrics: dict[str, Any]
    per_turn: dict[str, dict[str, dict[str, Any]]]  # system -> turn -> line of `per_turn.jsonl`
    records: dict[str, EvaluationRecord]

    @property
    def name(self) -> str:
        return self.run.path.name

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
        """What the verdict compares with: the untrained rewriter, else the unchanged question."""
        return next((name for name in ("base", "original") if name in self.systems), None)

    @property
    def measure(self) -> str | None:
        """The measure of the verdict: MRR@10 where passages are labelled, else EM, else the reward."""
        known = self.systems.get(self.final, {})
        return next((name for name in ("MRR@10", "EM", self.metrics.get("reward")) if name in known), None)

    @property
    def measures(self) -> list[str]:
        """The measures of the tables."""
        shown = dict.fromkeys((*SHOWN, self.metrics.get("reward")))
        return [name for name in shown if any(name in values for values in self.systems.values())]

    def comparison(self, a: str, b: str, measure: str) -> dict[str, Any] | None:
        """A row of the comparisons of the evaluation."""
        rows = self.metrics.get("comparisons", [])
        return next((r for r in rows if (r["a"], r["b"], r["metric"]) == (a, b, measure)), None)


def load_run(run: Run) -> RunData:
    """Read the files of a run. Stages that are not complete are left out."""
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
    """The complete stages of one round."""
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
    """The scores of one round: of its complete stage, the pairs that are kept, and the training turns by id."""
    rewards = Rewards(smallest_kept=min((pair.gap for pair in pairs), default=None))
    kept = {pair.id for pair in pairs}
    for record in scores:
        relevant = {doc for doc, grade in turns[record.id].relevant.items() if grade >= 1}
        rewards.lists += len(record.lists)
        rewards.abstaining += sum(score.abstains for score in record.lists.values())
        for candidate in record.candidates:
            if candidate.score is not None:
                rewards.scores.append(candidate.score)
                if relevant:
                    rewards.by_rank.setdefault(first_rank(candidate, relevant), []).append(candidate.score)
        pair = best_and_worst(record.candidates)
        if isinstance(pair, str):
            continue
        rewards.gaps.append(pair[0].score - pair[1].score)
        if relevant and record.id in kept:
            for side, candidate in zip(("chosen", "rejected"), pair, strict=True):
                rewards.hits[side].append(first_rank(candidate, relevant) > 0)
    return rewards


def first_rank(candidate: Candidate, relevant: set[str]) -> int:
    """The rank of the first relevant document of a candidate; 0 where there is none."""
    return next((rank for rank, hit in enumerate(candidate.documents, 1) if hit.doc in relevant), 0)
