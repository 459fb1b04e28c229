"""Judge passage lists with any reward, without training.

    python -m scoring.utility --model Qwen/Qwen2.5-1.5B-Instruct --input items.jsonl --output judged.jsonl
    python -m scoring.utility --reward udcg --model meta-llama/Llama-3.2-3B-Instruct --input a.json --output b.json
    python -m scoring.utility --reward udcg --model meta-llama/Llama-3.2-3B-Instruct --input b.json --output c.json
                                        # every passage of b.json carries `no_res_prob`: no model is loaded

An item is `{"question", "passages": [{"text", "doc_id"?, "is_relevant"?, "score"?}], "history"?, "answers"?,
"reply"?, "example_id"?}`; a file is JSON lines or one JSON list. Each item comes out with `<reward>[model]` and, for
UDCG, `models_info[model].no_res_prob` on each passage, as the published tool writes it; for GROGU rewards
`models_info[model]` on the item, with the answer and each of its tokens.

In Python, with `from core.language_model import load_language_model`: `score(item, "key_entropy",
load_language_model("..."))`, or `score_all` for many.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.artifacts import sha256, write_json
from core.cli import parse_flags, run_command
from core.errors import InputError
from core.progress import Progress, log, set_up_logging
from core.records import Score
from core.schema import Positive, Seed, validate
from core.settings import ModelSettings, RewardSettings, ScoringSettings
from scoring import grogu
from scoring.items import as_item, check_item, is_probability, read_items
from scoring.udcg import udcg
from scoring.unfinished import alone, begun, judged_before, plan_of

if TYPE_CHECKING:
    from core.language_model import LanguageModel

BATCH = 16  # items that are judged together and written at once


def score(item: dict[str, Any], reward: str, lm: "LanguageModel | None", **options: Any) -> dict[str, Any]:
    """Judge one item; see `score_all`."""
    return score_all([item], reward, lm, **options)[0]


def score_all(
    items: Sequence[dict[str, Any]],
    reward: str,
    lm: "LanguageModel | None",
    name: str | None = None,
    max_new_tokens: int = 64,
    batch_tokens: int = 16384,
    seed: int = 0,
    **options: Any,
) -> list[dict[str, Any]]:
    """Judge many items with one reward.

    Args:
        items: as the head of this file says; they are not changed.
        reward: as `core.settings.RewardSettings.reward`.
        lm: the generator (`core.language_model.load_language_model`); None where UDCG finds every `no_res_prob` in the
            items, and for `reciprocal_rank`.
        name: key of the results; the model's name when not given.
        max_new_tokens: longest answer.
        batch_tokens: tokens per batch.
        seed: of the answers that Delta-SePer samples.
        options: other fields of `core.settings.RewardSettings`.

    Returns:
        The items with `<reward>: {name: value}`. Where there is no value: None, and the reason in
        `errors: {<reward>: {name: reason}}`.

    Raises:
        InputError: an item lacks a field that the reward needs, or a reward or option is unknown or out of range.
    """
    from scoring.entailment import load_entailment
    from scoring.generator import Generator
    from scoring.rewards import Scorer

    name = name or (lm.name if lm else "")
    rule = ScoringSettings(**asdict(validate(RewardSettings, options | {"reward": reward})))
    for number, item in enumerate(items):
        check_item(item, f"item {number}", reward)
    known = [known_no_res(item, name) if reward == "udcg" else None for item in items]
    asked = [item for item, no_res in zip(items, known, strict=True) if no_res is None]
    if lm is None and reward != "reciprocal_rank" and any(item["passages"] for item in asked):
        raise InputError(f"the reward `{reward}` needs a generator, `lm`, for these items; got None.")
    device = lm.device.type if lm else None
    entailment = load_entailment(rule.entailment, batch_tokens, device) if reward.startswith("delta_seper") else None
    generator = Generator(lm, max_new_tokens, batch_tokens) if lm else None
    judge = Scorer(generator, rule, entailment, seed)
    scored = iter(judge.scores([as_item(item) for item in asked], [reward]) if asked else [])
    made = []
    for item, no_res in zip(items, known, strict=True):
        if no_res is not None:
            made.append(with_udcg(with_reason(item, reward, name, None), name, no_res, rule))
            continue
        one = next(scored)[reward]
        item = with_reason(item, reward, name, one.error)
        if reward == "udcg" and one.error is None:
            made.append(with_udcg(item, name, one.no_res, rule))
            continue
        result = item | {reward: item.get(reward, {}) | {name: one.value}}
        if reward in grogu.REWARDS:
            result["models_info"] = item.get("models_info", {}) | {name: token_record(one)}
        elif reward.startswith("delta_seper"):
            record = {"answer": one.answer, "cut": one.cut}
            result["models_info"] = item.get("models_info", {}) | {name: record}
        made.append(result)
    return made


def known_no_res(item: dict[str, Any], name: str) -> list[float] | None:
    """The `no_res_prob` of every passage, where all carry it already."""
    found = [
        passage.get("models_info", {}).get(name, {}).get("no_res_prob", passage.get("no_res_prob"))
        for passage in item["passages"]
    ]
    return found if found and all(map(is_probability, found)) else None


def with_udcg(item: dict[str, Any], name: str, no_res: Sequence[float], rule: ScoringSettings) -> dict[str, Any]:
    """The item in the published tool's output format."""
    passages = []
    for passage, probability in zip(item["passages"], no_res, strict=True):
        infos = passage.get("models_info", {})
        info = infos.get(name, {}) | {"no_res_prob": probability}
        passages.append(passage | {"models_info": infos | {name: info}})
    relevant = [passage["is_relevant"] for passage in passages]
    value = udcg(no_res, relevant, rule.relevant_weight, rule.irrelevant_weight, rule.normalise)
    return item | {"passages": passages, "udcg": item.get("udcg", {}) | {name: value}}


def with_reason(item: dict[str, Any], reward: str, name: str, reason: str | None) -> dict[str, Any]:
    """The item with the reason why this reward has no value; where it has one, without that of an earlier run."""
    reasons = item.get("errors", {}).get(reward, {})
    reasons = {other: why for other, why in reasons.items() if other != name} | ({name: reason} if reason else {})
    errors = {other: why for other, why in item.get("errors", {}).items() if other != reward}
    errors |= {reward: reasons} if reasons else {}
    return {key: value for key, value in item.items() if key != "errors"} | ({"errors": errors} if errors else {})


def token_record(found: Score) -> dict[str, Any]:
    """The answer, and of each token its text, entropies and log-probabilities in nats, and whether it is key."""
    stats = found.stats
    rows = zip(stats.tokens, stats.h0, stats.hd, stats.logp0, stats.logpd, strict=True) if stats else ()
    tokens = [
        {"text": text, "H_0": h0, "H_D": hd, "logp_0": logp0, "logp_D": logpd, "key": i in found.key}
        for i, (text, h0, hd, logp0, logpd) in enumerate(rows)
    ]
    return {
        "answer": found.answer, "rule": found.rule, "abstains": found.abstains, "cut": found.cut, "tokens": tokens
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ command


@dataclass(kw_only=True)
class UtilityFlags(RewardSettings, ModelSettings):
    """Flags of the command.

    Args:
        model: folder, Hub id or `.gguf` file of the generator; also the key of the results.
        adapter: PEFT adapter of the generator.
        batch_tokens: tokens per batch.
        max_new_tokens: longest answer.
        device: cpu, cuda, cuda:1 ...; the best there is when not given.
        seed: seed of the answers that Delta-SePer samples.
        input: items, JSON lines or a JSON list.
        output: file to write; `.json` makes a list, any other name JSON lines.
        resume: go on with an unfinished run.
    """

    model: str = field()  # without the default that it has in the settings
    max_new_tokens: Positive = 64
    device: str | None = None
    seed: Seed = 0
    input: Path
    output: Path
    resume: bool = False


def judge_file(flags: UtilityFlags) -> None:
    """Judge a file; what is done stands in `<output>.part` until the end, and `--resume` goes on from there."""
    options = {each.name: getattr(flags, each.name) for each in fields(RewardSettings)}
    if flags.output.is_dir():
        raise InputError(f"--output {flags.output}: is a folder; name a file in it.")
    if flags.output.exists() and not flags.output.is_file():
        raise InputError(f"--output {flags.output}: is no file that can be replaced; name another.")
    reward, part = options.pop("reward"), flags.output.with_name(flags.output.name + ".part")
    items = read_items(flags.input, reward)
    asked = options | {"reward": reward, "max_new_tokens": flags.max_new_tokens, "seed": flags.seed}
    asked |= {"model": flags.model, "adapter": flags.adapter, "dtype": flags.dtype}
    asked |= {"input": sha256(flags.input)}
    if flags.output.exists():
        log.warning("%s is there already and will be replaced", flags.output)
    done = judged_before(part, asked, items, flags.input) if begun(part, flags.resume) else []
    size = part.stat().st_size if done else 0
    lm = None
    needless = reward == "reciprocal_rank" or (
        reward == "udcg" and all(known_no_res(item, flags.model) is not None for item in items if item["passages"])
    )
    if not needless and len(done) < len(items):
        from core.language_model import check_room, load_language_model

        lm = load_language_model(flags.model, flags.adapter, flags.dtype, device=flags.device)
        check_room(lm, flags.max_new_tokens, "--max_new_tokens")
        if reward.startswith("delta_seper"):
            check_room(lm, flags.sample_tokens, "--sample_tokens")
    part.parent.mkdir(parents=True, exist_ok=True)
    with part.open("a", encoding="utf-8") as handle, Progress("utility", len(items), "items") as progress:
        alone(handle, size, part)
        write_json(plan_of(part), asked)
        progress.already(len(done))
        first = len(done) // BATCH * BATCH if len(done) < len(items) else len(items)
        starts = range(first, len(items), BATCH)  # whole batches give the same digits

        def judge(start: int) -> list[dict[str, Any]]:
            return score_all(
                items[start : start + BATCH], reward, lm, flags.model, flags.max_new_tokens,
                flags.batch_tokens, flags.seed, **options,
            )  # fmt: skip

        try:
            for start in starts:
                made = judge(start)[max(0, len(done) - start) :]
                handle.writelines(json.dumps(item, ensure_ascii=False, allow_nan=False) + "\n" for item in made)
                handle.flush()
                done += made
                progress.advance(len(made))
        finally:
            if not done:  # nothing to go on with
                part.unlink()
                plan_of(part).unlink()
    if flags.output.suffix == ".json":
        write_json(flags.output, done)
        part.unlink()
    else:
        part.replace(flags.output)
    plan_of(part).unlink()
    values = [item[reward][flags.model] for item in done]
    known = [value for value in values if value is not None]
    middle = f", mean {reward} {sum(known) / len(known):.4f}" if known else ""
    log.info("utility: %d items, %d without a value%s -> %s", len(done), len(done) - len(known), middle,
             flags.output)  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    flags = parse_flags(UtilityFlags, __doc__, argv)
    set_up_logging()
    judge_file(flags)


if __name__ == "__main__":
    run_command(main)
