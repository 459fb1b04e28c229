"""What a report says about a run: whether it helped, whether its reward was gamed, and whether training was healthy.

Each check returns a sentence where it sees a problem; the verdict of a run that did not help gives the first of them.
"""

from statistics import fmean

from train.report.run_data import Round, RunData

FEW_PAIRS, FEW_STEPS = 50, 20
UNTRAINED = {"original": "the unchanged question", "history": "all user turns joined"}
UNLABELLED = (
    "The held-out turns have no labels. The reward is what the rewriter was trained on; a higher reward is not "
    "higher accuracy. Label a few hundred turns (`relevant` or `answers`) to measure that."
)


def verdict(data: RunData) -> list[str]:
    """The verdict, a sentence or two: the first tells whether the run helped, with a 95% interval."""
    final, baseline, measure, systems = data.final, data.baseline, data.measure, data.systems
    if not data.metrics:
        last = next(reversed(data.stages), None)
        return [f"No evaluation yet: the run ends at `{last}`." if last else "No stage is complete yet."]
    if final is None or baseline is None or measure is None:
        return ["Nothing was trained, or nothing was measured: the table below compares the systems of the run."]
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
        outcome = "Training made it worse" if row["high"] < 0 else "Training made no clear difference"
        problems = all_problems(data)
        reason = f"The most likely reason: {problems[0]}" if problems else "No check below saw a reason."
        sentences = [f"{outcome}: {change}.", reason]
    if measure == data.metrics["reward"]:
        sentences.append(UNLABELLED)
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
    """Every problem that a check sees, the most telling first."""
    problems = data_problems(data)
    problems += filter(None, (training_problem(each, stage) for each in data.rounds for stage in each.logs))
    return problems + gaming_problems(data)


def data_problems(data: RunData) -> list[str]:
    """What is wrong with the data of a round: few pairs, ties, a generator that abstains, lists without a score."""
    problems = []
    for each in data.rounds:
        where, pairs, scores = f"in round {each.number} ", each.counts.get("pairs"), each.counts.get("scores")
        ties = pairs["dropped"].get("tie", 0) if pairs else 0
        if pairs and pairs["total"] < FEW_PAIRS:
            problems.append(f"{where}only {pairs['total']} pairs were left to learn from.")
        if pairs and ties > 0.5 * pairs["turns"]:
            problems.append(f"{where}the candidates of {ties} of {pairs['turns']} turns scored the same.")
        if scores and scores["abstaining"] > 0.1 * scores["lists"]:
            problems.append(
                f"{where}the generator abstained from {scores['abstaining']} of {scores['lists']} document lists; a "
                "confident abstention gives useless documents a high reward."
            )
        if scores and scores["unscored"] > 0.1 * scores["lists"]:
            problems.append(f"{where}{scores['unscored']} of {scores['lists']} document lists have no score.")
        hits = each.rewards.hits if each.rewards else {"chosen": []}
        if len(hits["chosen"]) >= 20 and sum(hits["chosen"]) <= sum(hits["rejected"]):
            problems.append(
                f"{where}the chosen rewrites find a relevant document no more often than the rejected ones: the "
                "reward does not tell good documents from bad ones here."
            )
    return problems


def training_problem(each: Round, stage: str) -> str:
    """What is wrong with the curves of a training stage; empty where they look healthy."""
    entries = [entry for entry in each.logs[stage] if "loss" in entry]
    where = f"round-{each.number}/{stage}: "
    if not entries:
        return where + "nothing was logged."
    first, last = entries[0], entries[-1]
    if last["step"] < FEW_STEPS:
        return where + f"{last['step']} steps are too few to learn from."
    if stage == "sft":
        learned = last["loss"] < 0.95 * first["loss"]
        return "" if learned else where + f"the loss did not fall ({first['loss']:.2f} to {last['loss']:.2f})."
    margin, accuracy = last.get("rewards/margins", 0.0), last.get("rewards/accuracies", 0.0)
    if margin <= 0 or accuracy < 0.55:
        return where + f"the policy did not learn the preferences (margin {margin:.2f}, accuracy {accuracy:.2f})."
    fall = first.get("logps/chosen", 0.0) - last.get("logps/chosen", 0.0)
    if fall > 10:
        return where + (
            f"the chosen rewrites lost {fall:.0f} nats of log-probability: the policy moves away from both sides of "
            "the pairs. Raise `dpo.beta`, lower `dpo.learning_rate`, or add `sft` to `dpo.loss_type`."
        )
    return ""


def gaming_problems(data: RunData) -> list[str]:
    """Signs that the final system raises its reward without retrieving better, each with what it usually means."""
    final, baseline = data.final, data.baseline
    if final is None or baseline is None:
        return []
    metrics, problems = data.metrics, []
    now, before, reward = metrics["queries"][final], metrics["queries"][baseline], metrics["reward"]
    rise = data.comparison(final, baseline, reward)
    labelled = data.comparison(final, baseline, "MRR@10") or data.comparison(final, baseline, "EM")
    if rise and labelled and rise["low"] > 0 and labelled["difference"] <= 0:
        problems.append(
            f"the reward rose ({rise['difference']:+.3f}) while {labelled['metric']} fell "
            f"({labelled['difference']:+.3f}): the rewriter games the reward instead of finding answers."
        )
    if now["words"] > 1.5 * before["words"] + 2:
        problems.append(
            f"queries grew from {before['words']:.1f} to {now['words']:.1f} words: long queries match more documents "
            "by chance. Lower `rewriter.max_new_tokens`, or raise `dpo.beta`."
        )
    if now["answer_words"] > before["answer_words"] + 0.05:
        problems.append(
            f"{now['answer_words']:.0%} of the query words are in the answer and not in the conversation (before: "
            f"{before['answer_words']:.0%}): the rewriter guesses answers, which retrieves well and reads wrong."
        )
    elif now["new_words"] > before["new_words"] + 0.15:
        problems.append(
            f"{now['new_words']:.0%} of the query words are not in the conversation (before: "
            f"{before['new_words']:.0%}): the rewriter adds what nobody said."
        )
    if now["repeated_words"] > before["repeated_words"] + 0.1:
        problems.append(
            f"{now['repeated_words']:.0%} of the query words are repeated (before: {before['repeated_words']:.0%}): "
            "repetition raises BM25 scores of single words."
        )
    if now["same_as_question"] > max(0.8, before["same_as_question"] + 0.2):
        problems.append(f"{now['same_as_question']:.0%} of the queries equal the question: it has learned to copy.")
    if now["distinct"] < 0.8 * before["distinct"]:
        problems.append(
            f"only {now['distinct']:.0%} of the queries are distinct (before: {before['distinct']:.0%}): the policy "
            "collapsed to a few queries."
        )
    shuffled, value = metrics["shuffled_reward"], data.systems[final].get(reward)
    if shuffled is not None and value and shuffled > 0.5 * value:
        problems.append(
            f"documents of other conversations have a reward of {shuffled:.3f}, and the retrieved ones {value:.3f}: "
            "any document makes the generator more confident, so the reward says little about the retrieved ones."
        )
    return problems
