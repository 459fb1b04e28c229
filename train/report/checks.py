"""The checks of a report: whether the run helped, whether its reward was gamed, and whether training was healthy.

Each check returns a sentence for each problem. If a run did not help, its verdict names the first problem.
"""

import math
from statistics import fmean

from train.report.run_data import Round, RunData

FEW_PAIRS, FEW_STEPS = 50, 20
UNTRAINED = {"original": "the unchanged question", "history": "all user turns joined"}
UNLABELED = (
    "The held-out turns have no labels, so this compares the reward that the rewriter was trained on. A higher reward "
    "does not imply higher accuracy; label a few hundred turns (`relevant` or `answers`) to measure accuracy."
)


def verdict(data: RunData) -> list[str]:
    """The verdict as a list of sentences. The first says whether the run helped, with a 95% interval."""
    final, baseline, measure, systems = data.final, data.baseline, data.measure, data.systems
    if not data.metrics:
        last = next(reversed(data.stages), None)
        return [f"No evaluation yet: the run ends at `{last}`." if last else "No stage is complete yet."]
    if final is None or baseline is None or measure is None:
        return ["No system was trained or measured; the table below compares the systems of the run."]
    row = data.comparison(final, baseline, measure)
    if row is None:
        return [f"{measure} of `{final}` and of `{baseline}` have no turn in common; see the table below."]
    now, before = shared_values(data, measure, final, baseline)
    change = (
        f"{measure} {fmean(before):.3f} → {fmean(now):.3f} "
        f"({row['difference']:+.3f}, 95% {row['low']:+.3f} to {row['high']:+.3f}) over {len(now)} held-out turns"
    )
    if measure != "EM" and "EM" in systems[final] and "EM" in systems[baseline]:
        change += f"; answers right {systems[baseline]['EM']:.0%} → {systems[final]['EM']:.0%}"
    if row["low"] > 0:
        sentences = [f"Training helped: {change}."]
    else:
        outcome = "Training made the results worse" if row["high"] < 0 else "Training made no clear difference"
        problems = all_problems(data)
        reason = f"The most likely reason: {problems[0]}" if problems else "The checks below found no reason."
        sentences = [f"{outcome}: {change}.", reason]
    if measure == data.metrics["reward"]:
        sentences.append(UNLABELED)
    relations = []
    for name, description in UNTRAINED.items():
        now, other = shared_values(data, measure, final, name)
        if name != baseline and other:
            relation = "above" if fmean(now) > fmean(other) else "not above"
            relations.append(f"{relation} {description} ({fmean(other):.3f})")
    if relations:
        sentences.append(f"That is {' and '.join(relations)}.")
    return sentences


def shared_values(data: RunData, measure: str, a: str, b: str) -> tuple[list[float], list[float]]:
    """The values of two systems on the turns for which both have one."""
    first, second = data.per_turn.get(a, {}), data.per_turn.get(b, {})
    turns = [turn for turn, line in first.items() if measure in line and measure in second.get(turn, {})]
    return [first[turn][measure] for turn in turns], [second[turn][measure] for turn in turns]


def all_problems(data: RunData) -> list[str]:
    """The problems that all checks find, the most likely cause first."""
    problems = data_problems(data)
    problems += filter(None, (training_problem(r, stage) for r in data.rounds for stage in r.logs))
    return problems + gaming_problems(data)


def data_problems(data: RunData) -> list[str]:
    """Problems with the data of a round, such as few pairs, equal scores, abstentions or lists without a score."""
    problems = []
    for round_data in data.rounds:
        pairs, scores = round_data.counts.get("pairs"), round_data.counts.get("scores")
        where = f"in round {round_data.number} "
        equal = pairs["dropped"].get("equal scores", 0) if pairs else 0
        if pairs and pairs["total"] < FEW_PAIRS:
            problems.append(f"{where}only {pairs['total']} pairs were left to train on.")
        if pairs and equal > 0.5 * pairs["turns"]:
            problems.append(f"{where}all candidates have the same score in {equal} of {pairs['turns']} turns.")
        if scores and scores["abstaining"] > 0.1 * scores["lists"]:
            problems.append(
                f"{where}the generator abstained from {scores['abstaining']} of {scores['lists']} document lists; a "
                "confident abstention assigns a high reward to useless documents."
            )
        if scores and scores["unscored"] > 0.1 * scores["lists"]:
            problems.append(f"{where}{scores['unscored']} of {scores['lists']} document lists have no score.")
        hits = round_data.rewards.hits if round_data.rewards else {"chosen": []}
        if len(hits["chosen"]) >= 20 and sum(hits["chosen"]) <= sum(hits["rejected"]):
            problems.append(
                f"{where}the chosen rewrites retrieve a relevant document no more often than the rejected ones: the "
                "reward does not distinguish good documents from bad ones."
            )
    return problems


def training_problem(round_data: Round, stage: str) -> str:
    """The problem with the curves of a training stage; empty if they look healthy."""
    entries = [entry for entry in round_data.logs[stage] if "loss" in entry]
    where = f"round-{round_data.number}/{stage}: "
    if not entries:
        return where + "the training log is empty."
    first, last = entries[0], entries[-1]
    if last["step"] < FEW_STEPS:
        return where + f"{last['step']} steps are too few to learn from."
    if stage == "sft":
        learned = last["loss"] < 0.95 * first["loss"]
        return "" if learned else where + f"the loss did not fall ({first['loss']:.2f} to {last['loss']:.2f})."
    margin, accuracy = last.get("rewards/margins", math.nan), last.get("rewards/accuracies", math.nan)
    if margin <= 0 or accuracy < 0.55:  # false for values that the trainer does not log
        return where + f"the policy did not learn the preferences (margin {margin:.2f}, accuracy {accuracy:.2f})."
    fall = first.get("logps/chosen", 0.0) - last.get("logps/chosen", 0.0)
    if fall > 10:
        return where + (
            f"the chosen rewrites lost {fall:.0f} nats of log-probability: the policy moves away from both sides of "
            "the pairs. Raise `dpo.beta`, lower `dpo.learning_rate`, or add `sft` to `dpo.loss_type`."
        )
    return ""


def gaming_problems(data: RunData) -> list[str]:
    """Signs that the final system raises its reward without retrieving better, each with its usual meaning."""
    final, baseline = data.final, data.baseline
    if final is None or baseline is None:
        return []
    metrics, problems = data.metrics, []
    now, before, reward = metrics["queries"][final], metrics["queries"][baseline], metrics["reward"]
    rise = data.comparison(final, baseline, reward)
    labeled = data.comparison(final, baseline, "MRR@10") or data.comparison(final, baseline, "EM")
    if rise and labeled and rise["low"] > 0 and labeled["difference"] <= 0:
        problems.append(
            f"the reward rose ({rise['difference']:+.3f}) while {labeled['metric']} fell "
            f"({labeled['difference']:+.3f}): the rewriter games the reward and does not retrieve better."
        )
    if now["words"] > 1.5 * before["words"] + 2:
        problems.append(
            f"queries grew from {before['words']:.1f} to {now['words']:.1f} words: long queries match more documents "
            "by chance. Lower `rewriter.max_new_tokens`, or raise `dpo.beta`."
        )
    if now["answer_words"] > before["answer_words"] + 0.05:
        problems.append(
            f"{now['answer_words']:.0%} of the query words are in the answer but not in the conversation (before: "
            f"{before['answer_words']:.0%}): the rewriter guesses answers, which can retrieve well but may be wrong."
        )
    elif now["new_words"] > before["new_words"] + 0.15:
        problems.append(
            f"{now['new_words']:.0%} of the query words are not in the conversation (before: "
            f"{before['new_words']:.0%}): the rewriter adds words that nobody used."
        )
    if now["repeated_words"] > before["repeated_words"] + 0.1:
        problems.append(
            f"{now['repeated_words']:.0%} of the query words are repeated (before: {before['repeated_words']:.0%}): "
            "repetition raises the BM25 weight of single words."
        )
    if now["same_as_question"] > max(0.8, before["same_as_question"] + 0.2):
        problems.append(
            f"{now['same_as_question']:.0%} of the queries equal the question: the rewriter has learned to copy."
        )
    if now["distinct"] < 0.8 * before["distinct"]:
        problems.append(
            f"only {now['distinct']:.0%} of the queries are distinct (before: {before['distinct']:.0%}): the policy "
            "has collapsed to a few queries."
        )
    shuffled, value = metrics["shuffled_reward"], data.systems[final].get(reward)
    if shuffled is not None and value and shuffled > 0.5 * value:
        problems.append(
            f"documents of other conversations have a reward of {shuffled:.3f}, the retrieved ones {value:.3f}: any "
            "document makes the generator more confident, so the reward says little about the quality of documents."
        )
    return problems
