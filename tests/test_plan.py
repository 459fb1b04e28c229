"""`--run.plan`: every stage with its state, costs close to those of a real run, and nothing written."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from core.language_model import load_language_model
from core.records import GenerationInput, TurnRecord
from core.stages import load_stage
from rewriter.prompts import RewritePrompt
from rewriter.sampling import prompts_of
from scoring.generator import Generator
from tests.conftest import QUICK, ROOT, call, write_lines
from train.costs import Costs
from train.dpo import main
from train.pipeline import stage_names
from train.plan import costs_of, si
from train.run import load_run_folder

QUICKSTART = ["--config", ROOT / "configs/quickstart.yaml", "--rewriter.model", ROOT / "configs/tiny-model"]


def plan_of(*flags) -> dict[str, list[str]]:
    """Stage -> state, turns, calls, tokens, FLOPs, hours and disk, as `--run.plan` prints them."""
    output = call(main, *QUICKSTART, *flags, "--run.plan")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in output.splitlines() if line[:1] == "|"]
    return {stage: cells for stage, *cells in rows[2:]}


def plan_of_copy(finished_run, folder, *flags) -> dict[str, list[str]]:
    """The plan of the finished run's command, for a copy of the run folder."""
    files = [f"--data.{name}={finished_run.parent / 'data' / name}.jsonl" for name in ("train", "test", "corpus")]
    return plan_of("--data.format", "records", *files, "--run.dir", folder, *QUICK, *flags)


def test_the_quickstarts_plan_names_every_stage_and_writes_nothing(tmp_path):
    plan = plan_of("--run.dir", tmp_path / "run")
    assert list(plan) == [*stage_names(2), "total"] and not (tmp_path / "run").exists()
    assert {cells[0] for cells in plan.values()} == {"run: missing", ""}
    assert plan["round-1/candidates"][1:3] == ["1325", "10.6k"] and plan["evaluation"][1] == "425"
    assert plan["round-1/rankings"][2:6] == ["0", "0", "0", "0"]
    assert plan["round-1/scores"][5] == "under 0.01"
    slow, slower = (
        plan_of("--run.dir", tmp_path / "run", "--run.tflops", tflops, "--run.until", "scores")
        for tflops in ("0.01", "0.001")
    )
    assert list(slow) == [*stage_names(2)[:3], "total"]
    assert float(slower["round-1/scores"][5]) == pytest.approx(10 * float(slow["round-1/scores"][5]), rel=0.1)


def test_a_collection_without_a_valid_passage_is_named(tmp_path):
    turns = write_lines(tmp_path / "turns.jsonl", [{"id": "a_1", "history": [], "question": "Who?"}])
    corpus = write_lines(tmp_path / "corpus.jsonl", [{"id": "d", "text": ""}])
    flags = ["--data.format", "records", "--data.train", turns, "--data.corpus", corpus, "--run.dir", tmp_path / "run"]
    output = call(main, *QUICKSTART, *flags, "--run.until", "scores", "--run.plan", ok=False)
    assert f"{corpus}: the collection has no valid passage. {corpus}:1: " in output


def test_complete_stages_are_skipped_and_started_ones_resumed(finished_run, tmp_path):
    run = shutil.copytree(finished_run, tmp_path / "run")
    scores = run / "round-1/scores"
    lines = (scores / "records.jsonl").read_text().splitlines(keepends=True)
    (scores / "part-0.jsonl").write_text("".join(lines[:6]) + lines[6][:20])
    checkpoint = run / "round-2/dpo/checkpoints/checkpoint-3"
    checkpoint.mkdir(parents=True)
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": 3, "max_steps": 4}))
    torch.save(torch.get_rng_state(), checkpoint / "rng_state.pth")
    for path in (scores / "records.jsonl", scores / "manifest.json", run / "round-2/dpo/manifest.json"):
        path.unlink()
    shutil.rmtree(run / "evaluation")
    before = sorted(run.rglob("*"))
    plan, whole = plan_of_copy(finished_run, run), plan_of_copy(finished_run, tmp_path / "new")
    assert sorted(run.rglob("*")) == before
    assert plan["round-1/candidates"] == ["skip: complete", "24", "0", "0", "0", "0", "0B"]
    assert plan["round-1/scores"][0] == "resume: 6 of 24 records"
    assert plan["round-2/dpo"][0] == "resume: 3 of 4 steps"
    assert plan["evaluation"] == whole["evaluation"]
    assert float(plan["round-1/scores"][2]) == pytest.approx(0.75 * float(whole["round-1/scores"][2]), rel=0.01)
    redone = plan_of_copy(finished_run, run, "--run.redo_from", "round-2/candidates")
    assert redone["round-2/pairs"][0] == "run: redo_from" and redone["round-1/pairs"][0] == "skip: complete"


@pytest.fixture(scope="module")
def costs(finished_run, tmp_path_factory) -> Costs:
    return costs_of(load_run_folder(finished_run).settings, tmp_path_factory.mktemp("none"))


def records_of(run: Path, stage: str) -> list[TurnRecord]:
    return list(load_stage(run, stage, TurnRecord))


def test_a_stage_of_unknown_cost_raises_an_error(costs):
    with pytest.raises(ValueError, match="the cost of the stage `round-1/ppo` is not known"):
        costs.of("round-1/ppo")


def test_costs_are_near_those_of_a_real_run(finished_run, costs):
    run = load_run_folder(finished_run)
    settings, turns = run.settings, run.train_turns.turns
    lm = load_language_model(str(ROOT / "configs/tiny-model"))
    candidates, scores = (records_of(finished_run, f"round-1/{name}") for name in ("candidates", "scores"))

    prompts = prompts_of(lm, turns, RewritePrompt(), settings.rewriter.max_new_tokens)
    written = sum(candidate.tokens * candidate.count for record in candidates for candidate in record.candidates)
    check(costs.of("round-1/candidates")[1].tokens, sum(len(ids) for ids, _ in prompts) + written)

    generator, read = Generator.of(lm, settings.generator), 0
    for turn, record in zip(turns, scores, strict=True):
        lists = {c.list_id: [hit.doc for hit in c.documents] for c in record.candidates}
        inputs = {
            key: GenerationInput.of(turn.history, turn.question, run.collections[""].contents(documents))
            for key, documents in lists.items() if record.lists[key].stats
        }  # fmt: skip
        bare = GenerationInput.of(turn.history, turn.question, ())
        lengths = {each: len(ids) for each, (ids, _) in generator.prompts([*inputs.values(), bare], 8).items()}
        read += 2 * lengths[bare]
        for key, each in inputs.items():
            read += lengths[each] - lengths[bare] + 2 * len(record.lists[key].stats.tokens)
    check(costs.of("round-1/scores")[1].tokens, read)
    check(costs.of("round-1/scores")[1].calls, 2 * sum(len(record.lists) for record in scores))


@pytest.mark.parametrize(("stage", "calls_of_pair"), [("round-1/sft", 3), ("round-1/dpo", 6), ("round-2/dpo", 6)])
def test_training_is_near_that_of_a_real_run(finished_run, costs, stage, calls_of_pair):
    """SFT processes one side of each pair in three epochs, DPO both sides in two, and both once with the reference."""
    counts = json.loads((finished_run / stage / "manifest.json").read_text())["counts"]
    check(costs.of(stage)[1].calls, calls_of_pair * counts["total"])
    size = (finished_run / stage / "adapter/adapter_model.safetensors").stat().st_size
    check(4 * costs.adapter_size, size)


@pytest.mark.parametrize("stage", ["candidates", "rankings", "scores", "pairs"])
def test_disk_is_near_that_of_a_real_run(finished_run, costs, stage):
    check(costs.of(f"round-1/{stage}")[1].disk, (finished_run / f"round-1/{stage}/records.jsonl").stat().st_size)


def check(expected: float, real: float) -> None:
    assert real / 2 <= expected <= 2 * real


def test_flops_are_those_of_the_parameters(costs):
    _, work = costs.of("round-1/candidates")
    assert work.flops == 2 * costs.size * work.tokens
    _, sft = costs.of("round-1/sft")
    assert sft.flops == pytest.approx(4 * costs.size * sft.tokens)
    _, dpo = costs.of("round-1/dpo")  # two epochs of training, one of the reference
    assert dpo.flops == pytest.approx((4 * 2 / 3 + 2 / 3) * costs.size * dpo.tokens)


@pytest.mark.parametrize(
    ("settings", "per_list"), [("udcg", 3), ("answer_logprob", 3), ("reciprocal_rank", 0), ("delta_seper_soft", 10)]
)
def test_other_rewards_have_other_passes(costs, settings, per_list):
    costs.run.settings.scoring.reward = settings
    work = [costs.scoring(costs.train_lengths, lists, costs.passes) for lists in (1, 2)]
    costs.run.settings.scoring.reward = "key_entropy"
    assert work[1].calls - work[0].calls == per_list and (work[0].flops > 0) == (per_list > 0)


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (999, "999"), (12345, "12.3k"), (999600, "1M"), (2e22, "20Z")])
def test_numbers_have_prefixes(value, text):
    assert si(value) == text
