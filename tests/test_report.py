"""`report.html`: its content, what it omits, and its behavior in a browser."""

import html
import json
import shutil

import pytest

from tests.conftest import call, settings_of
from train.report import checks, plots
from train.report.__main__ import main as report
from train.report.page import flow_rows
from train.report.run_data import Round, RunData
from train.run import Run

QUERIES = {
    "words": 6.0, "new_words": 0.1, "answer_words": 0.0, "repeated_words": 0.0, "same_as_question": 0.3,
    "distinct": 0.9,
}  # fmt: skip


def run_data(
    base=0.3, dpo=0.5, low=0.1, high=0.3, reward=(0.2, 0.4), queries=None, rounds=(), measure="MRR@10", **more
):
    """A run whose evaluation has the systems `base` and `dpo`."""
    systems = {"base": {measure: base, "key_entropy": reward[0]}, "dpo": {measure: dpo, "key_entropy": reward[1]}}
    differences = {measure: (dpo - base, low, high), "key_entropy": (reward[1] - reward[0], 0.1, 0.3)}
    comparisons = [
        {"a": "dpo", "b": "base", "metric": name, "difference": value, "low": low, "high": high, "p": 0.01}
        for name, (value, low, high) in differences.items()
    ]
    metrics = {
        "systems": systems, "comparisons": comparisons, "reward": "key_entropy", "shuffled_reward": 0.0,
        "queries": {"base": QUERIES, "dpo": QUERIES | (queries or {})},
    }  # fmt: skip
    per_turn = {name: {"t": {measure: systems[name][measure]}} for name in systems}
    return RunData(Run(settings_of(), []), {}, list(rounds), metrics | more, per_turn, {})


def test_the_verdict_of_a_run_that_helped():
    assert checks.verdict(run_data()) == [
        "Training helped: MRR@10 0.300 → 0.500 (+0.200, 95% +0.100 to +0.300) over 1 held-out turns."
    ]


def test_the_verdict_of_a_run_that_did_not_help_gives_a_reason():
    few = Round(1, {"pairs": {"total": 12, "turns": 40, "dropped": {"equal scores": 28}}}, None, {}, {})
    first, reason = checks.verdict(run_data(dpo=0.31, low=-0.02, high=0.04, rounds=[few]))
    assert first.startswith("Training made no clear difference: MRR@10 0.300 → 0.310")
    assert reason == "The most likely reason: in round 1 only 12 pairs were left to train on."
    first, reason = checks.verdict(run_data(dpo=0.2, low=-0.2, high=-0.05))
    assert first.startswith("Training made the results worse")
    assert "the reward rose (+0.200) while MRR@10 fell (-0.100)" in reason


def test_without_labels_the_verdict_is_about_the_reward_and_says_so():
    run = run_data(0.2, 0.4, measure="key_entropy", reward=(0.2, 0.4))
    first, caution = checks.verdict(run)
    assert first.startswith("Training helped: key_entropy 0.200 → 0.400")
    assert "does not imply higher accuracy" in caution


def test_the_verdict_compares_turns_that_both_systems_have_a_value_for():
    run = run_data(0.2, 0.4, measure="key_entropy", reward=(0.2, 0.4))
    run.per_turn["base"]["u"] = {"key_entropy": 9.0}
    run.per_turn["dpo"]["v"] = {"key_entropy": 7.0}
    first, _ = checks.verdict(run)
    assert "key_entropy 0.200 → 0.400" in first and first.endswith("over 1 held-out turns.")


def test_the_verdict_names_untrained_queries_that_are_better():
    run = run_data()
    run.per_turn["original"], run.per_turn["history"] = {"t": {"MRR@10": 0.35}}, {"t": {"MRR@10": 0.6}}
    last = checks.verdict(run)[-1]
    assert last == ("That is above the unchanged question (0.350) and not above all user turns joined (0.600).")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"queries": {"words": 20.0}}, "queries grew from 6.0 to 20.0 words"),
        ({"queries": {"answer_words": 0.2}}, "20% of the query words are in the answer but not in the conversation"),
        ({"queries": {"new_words": 0.5}}, "50% of the query words are not in the conversation"),
        ({"queries": {"repeated_words": 0.3}}, "30% of the query words are repeated"),
        ({"queries": {"same_as_question": 0.95}}, "95% of the queries equal the question"),
        ({"queries": {"distinct": 0.2}}, "only 20% of the queries are distinct"),
        ({"shuffled_reward": 0.3}, "documents of other conversations have a reward of 0.300"),
    ],
)
def test_signs_of_a_gamed_reward(change, expected):
    assert checks.gaming_problems(run_data()) == []
    (problem,) = checks.gaming_problems(run_data(**change))
    assert expected in problem


def test_curves_that_are_not_healthy():
    def logged(**last):
        first = {"step": 1, "loss": 1.0, "rewards/margins": 0.0, "rewards/accuracies": 0.0, "logps/chosen": -5.0}
        return Round(
            1, {}, None, {"dpo": [first, first | {"step": 50} | last], "sft": [first, {"step": 50, "loss": 1.0}]}, {}
        )

    healthy = {"rewards/margins": 1.0, "rewards/accuracies": 0.8}
    assert checks.training_problem(logged(**healthy), "dpo") == ""
    assert "did not learn the preferences" in checks.training_problem(logged(), "dpo")
    other = logged(**healthy)
    for entry in other.logs["dpo"]:
        del entry["rewards/accuracies"]  # a trainer that does not log it
    assert checks.training_problem(other, "dpo") == ""
    assert "lost 35 nats" in checks.training_problem(logged(**healthy, **{"logps/chosen": -40.0}), "dpo")
    assert "8 steps are too few" in checks.training_problem(logged(step=8), "dpo")
    assert "the loss did not fall" in checks.training_problem(logged(), "sft")


def test_a_new_reason_to_drop_a_pair_is_not_a_turn_without_a_pair():
    rows = flow_rows({"pairs": {"total": 5, "dropped": {"too long": 2, "equal scores": 1}}})
    assert rows == [("pairs", 7, "turns without a pair: 1 equal scores"), ("kept", 5, "dropped: 2 too long")]


@pytest.mark.parametrize("longest", [1, 31, 64, 91, 200])
def test_the_histogram_of_lengths_counts_every_rewrite(monkeypatch, longest):
    monkeypatch.setattr(plots, "svg_of", lambda figure, label: figure)
    figure = plots.plot_lengths({"chosen": [longest, 1], "rejected": [longest]})
    assert sum(bar.get_height() for bar in figure.axes[0].patches) == 3


@pytest.mark.slow
def test_the_report_of_a_run(finished_run):
    page = (finished_run / "report.html").read_text()
    metrics = json.loads((finished_run / "evaluation/metrics.json").read_text())
    assert "held-out turns" in page and f"{metrics['systems']['dpo']['MRR@10']:.3f}" in page
    for title in ("Where the data went", "Is the reward being gamed?", "Token view", "round-2/dpo", "peak memory"):
        assert title in page
    assert page.count("<svg") >= 8


@pytest.mark.slow
def test_texts_are_escaped(finished_run):
    page = (finished_run / "report.html").read_text()
    assert "<img src=x" not in page and "&lt;img src=x onerror=alert(1)&gt;" in page
    assert "<script>document.title" not in page and "&lt;script&gt;document.title" in page


@pytest.mark.slow
def test_a_report_without_examples_has_no_text_of_the_data(finished_run, tmp_path):
    call(report, finished_run, "--examples", "0", "--output", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "report.examples: 0" in page
    settings = json.loads((finished_run / "run.json").read_text())["settings"]
    for name in ("train", "test"):
        with open(settings["data"][name]) as turns:
            for turn in map(json.loads, list(turns)[:24]):
                texts = [turn["question"], *(message["content"] for message in turn["history"])]
                long = [text for text in texts if " " in text]
                assert long and not any(text in page or html.escape(text) in page for text in long)


@pytest.mark.slow
def test_runs_side_by_side_and_a_folder_without_a_run(finished_run, tmp_path):
    other = shutil.copytree(finished_run, tmp_path / "other")
    shutil.rmtree(other / "evaluation")
    output = call(report, finished_run, other, "--output", tmp_path / "both.html")
    page = (tmp_path / "both.html").read_text()
    assert f"report -> {tmp_path / 'both.html'}" in output
    assert "<h3>run</h3>" in page and "<h3>other</h3>" in page and "The run has no evaluation yet." in page
    assert "No evaluation yet: the run ends at `round-2/dpo`" in page
    assert "is not a run folder: it has no run.json" in call(report, tmp_path, ok=False)


@pytest.fixture
def browser():
    """Headless Chromium, from the system or from Playwright."""
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
        try:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        except sync_api.Error as error:
            pytest.skip(f"no browser: {error.message.splitlines()[0]}")
        yield browser
        browser.close()


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_the_report_in_a_browser(finished_run, browser, width):
    page = browser.new_page(viewport={"width": width, "height": 900})
    messages, requests = [], []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto((finished_run / "report.html").as_uri())
    assert page.title() == "Report: run"  # the script in a document is shown as text
    assert requests == [(finished_run / "report.html").as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    total = page.locator(".example").count()
    question = page.locator(".example summary").first.inner_text().split(maxsplit=1)[1]
    page.fill("#search", question)
    shown = page.locator(".example:visible").count()
    assert 1 <= shown < total and page.inner_text("#count") == f"{shown} of {total} turns"
    page.fill("#search", "no such words anywhere")
    assert page.inner_text("#count") == f"0 of {total} turns"
    page.fill("#search", "")
    page.select_option("#outcome", "same")
    assert page.locator(".example:visible").count() == page.locator(".example[data-outcome=same]").count()
    page.locator(".answers > summary").first.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className").startswith("tok")
    tip = page.evaluate("getComputedStyle(document.activeElement, '::after').content")
    assert "H₀" in tip and "H_D" in tip
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    assert messages == []
