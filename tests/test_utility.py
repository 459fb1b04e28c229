"""`python -m scoring.utility`, run as a user does."""

import json
import os
import subprocess
import sys
import time

import pytest
from filelock import FileLock

from core.errors import InputError
from scoring.score_items import score_item, score_items
from scoring.utility import main
from tests.conftest import ROOT, call
from tests.test_udcg import GOLDEN

ITEM = {
    "example_id": "e1",
    "question": "Where was Talpa born?",
    "passages": [
        {"doc_id": "1", "text": "Talpa was born in Port Verna.", "is_relevant": True},
        {"doc_id": "2", "text": "A lake by the sea.", "is_relevant": False},
    ],
    "answers": ["Port Verna"],
}


def run(*words, ok=True):
    return call(main, *words, ok=ok)


def test_the_published_items_need_no_model(tmp_path):
    name = "meta-llama/Llama-3.2-3B-Instruct"
    items = [
        {
            "question": "q",
            "passages": [
                {"text": "t", "is_relevant": relevant, "models_info": {name: {"no_res_prob": probability}}}
                for relevant, probability in zip(labels, given, strict=True)
            ],
        }
        for labels, given, _ in GOLDEN
    ]
    (tmp_path / "in.json").write_text(json.dumps(items))
    run("--reward", "udcg", "--model", name, "--input", tmp_path / "in.json", "--output", tmp_path / "out.json")
    made = json.loads((tmp_path / "out.json").read_text())
    assert [item["udcg"][name] for item in made] == pytest.approx([golden for *_, golden in GOLDEN], abs=1e-12)
    assert [item["passages"] for item in made] == [item["passages"] for item in items]
    (tmp_path / "one.json").write_text(json.dumps(items[0], indent=2))
    run("--reward", "udcg", "--model", name, "--input", tmp_path / "one.json", "--output", tmp_path / "one-out.json")
    assert json.loads((tmp_path / "one-out.json").read_text()) == made[:1]


def test_an_interrupted_run_resumes(random_llama, tmp_path):
    items = [ITEM | {"example_id": f"e{n}", "question": f"Where was Talpa born? {n}"} for n in range(300)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    words = ["--model", random_llama, "--input", tmp_path / "in.jsonl", "--max_new_tokens", "4"]
    run(*words, "--output", tmp_path / "whole.jsonl")
    whole = (tmp_path / "whole.jsonl").read_text()
    lines = whole.splitlines(keepends=True)
    part = tmp_path / "again.jsonl.part"
    command = [sys.executable, "-m", "scoring.utility", *map(str, words), "--output", str(tmp_path / "again.jsonl")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not part.exists() or not part.stat().st_size:
            assert process.poll() is None
            time.sleep(0.005)
        process.kill()
    begun = part.with_name(part.name + ".json").read_text()
    with part.open("a") as handle:
        handle.write('{"broken')
    assert "--resume" in run(*words, "--output", tmp_path / "again.jsonl", ok=False)
    output = run(*words, "--output", tmp_path / "again.jsonl", "--resume", "--alpha", "0.5", ok=False)
    assert "started with another `alpha` (0.05, now 0.5)" in output
    output = run(*words, "--output", tmp_path / "again.jsonl", "--resume", "--dtype", "bfloat16", ok=False)
    assert "started with another `dtype`" in output
    run(*words, "--output", tmp_path / "again.jsonl", "--resume")
    assert (tmp_path / "again.jsonl").read_text() == whole and not part.exists()
    plan = part.with_name(part.name + ".json")
    plan.write_text(begun), part.write_text(whole)
    run(*words, "--output", tmp_path / "again.jsonl", "--resume")
    assert (tmp_path / "again.jsonl").read_text() == whole
    plan.write_text(begun), part.write_text(lines[0] + "garbage\n" + lines[1])
    output = run(*words, "--output", tmp_path / "again.jsonl", "--resume", ok=False)
    assert "again.jsonl.part:2: " in output and "Remove" in output
    plan.write_text("{")
    assert "missing or damaged; remove" in run(*words, "--output", tmp_path / "again.jsonl", "--resume", ok=False)
    first = json.loads(lines[0])
    record = first["models_info"][str(random_llama)]
    assert {"text", "H_0", "H_D", "logp_0", "logp_D", "key"} == record["tokens"][0].keys()
    key = [token["H_0"] - token["H_D"] for token in record["tokens"] if token["key"]]
    assert first["key_entropy"][str(random_llama)] == pytest.approx(sum(key) / len(key))


def test_the_published_output_format(lm):
    made = score_item(ITEM, "udcg", lm, name="m")
    assert all(0 <= passage["models_info"]["m"]["no_res_prob"] <= 1 for passage in made["passages"])
    assert 0.417 < made["udcg"]["m"] < 0.731
    assert "udcg" not in ITEM and "models_info" not in ITEM["passages"][0]
    again = score_items([made], "udcg", None, name="m")[0]
    assert again == made


def test_a_reason_stays_until_its_reward_has_a_value(lm):
    long = score_item(ITEM | {"question": "long " * 9000}, "key_entropy", lm, name="m")
    assert long["key_entropy"] == {"m": None} and list(long["errors"]) == ["key_entropy"]
    other = score_item(long | {"question": ITEM["question"]}, "entropy", lm, name="m")
    assert other["errors"] == long["errors"] and other["entropy"]["m"] is not None
    same = score_item(other, "key_entropy", lm, name="m")
    assert "errors" not in same and same["key_entropy"]["m"] is not None


@pytest.mark.parametrize(
    "change, reward, expected",
    [
        ({"question": " "}, "key_entropy", "`question` must be a string that is not empty, got ' '"),
        ({"passages": "text"}, "key_entropy", "`passages` must be a list, got 'text'"),
        ({"passages": [{"txt": "x"}]}, "key_entropy", r"`passages\[0\].text` is missing"),
        ({"passages": [{"text": "x"}]}, "udcg", "needs `is_relevant`"),
        (
            {"passages": [{"text": "x", "is_relevant": True, "no_res_prob": 1.5}]},
            "udcg",
            r"`passages\[0\].no_res_prob` must be less",
        ),
        ({"answers": []}, "answer_logprob", "needs `answers`"),
        ({"history": ["hello"]}, "key_entropy", r"`history\[0\]` must be an object, got 'hello'"),
        ({"passages": [{"text": "x", "score": 10**400}]}, "key_entropy", r"`passages\[0\].score` must be"),
        ({"errors": {"m": "a reason"}}, "key_entropy", "`errors.m` must be an object"),
    ],
)
def test_bad_items_are_named(lm, change, reward, expected):
    with pytest.raises(InputError, match=expected):
        score_item(ITEM | change, reward, lm)


@pytest.mark.parametrize(
    ("reward", "options", "expected"),
    [
        ("key_entrop", {}, "did you mean `key_entropy`"),
        ("weighted", {}, "`reward` must be one of key_entropy, .*, got 'weighted'"),
        ("udcg", {"abstention": "sequnce"}, "`abstention` must be one of first_token, sequence, got 'sequnce'"),
        ("udcg", {"abstenton": "sequence"}, "did you mean `abstention`"),
        ("key_entropy", {"lm": None}, "needs a generator"),
    ],
)
def test_bad_arguments_are_named(lm, reward, options, expected):
    with pytest.raises(InputError, match=expected):
        score_item(ITEM, reward, **({"lm": lm} | options))


def test_an_item_without_passages_needs_no_model():
    made = score_item(ITEM | {"passages": []}, "udcg", None, name="m")
    assert made["udcg"] == {"m": None} and made["errors"] == {"udcg": {"m": "no documents retrieved"}}


def test_delta_seper_reports_cut_documents_too(lm):
    long = ITEM | {"passages": [*ITEM["passages"], {"text": "word " * lm.context, "is_relevant": False}]}
    made = score_item(long, "delta_seper_soft", lm, samples=2, sample_tokens=4, entailment="exact")
    assert made["models_info"][lm.name]["cut"] == 1 and made["delta_seper_soft"][lm.name] is not None


def test_only_items_without_probabilities_need_the_model(lm):
    known = ITEM | {"passages": [p | {"no_res_prob": 0.2} for p in ITEM["passages"]], "errors": {"udcg": {"m": "old"}}}
    for items in ([known, ITEM], [ITEM, known]):
        made = dict(zip(("known", "asked") if items[0] is known else ("asked", "known"),
                        score_items(items, "udcg", lm, name="m"), strict=True))  # fmt: skip
        assert [made["known"]] == score_items([known], "udcg", None, name="m")
        assert made["asked"]["udcg"]["m"] == pytest.approx(score_item(ITEM, "udcg", lm, name="m")["udcg"]["m"])
        assert "errors" not in made["known"]


def test_an_output_that_cannot_be_written_is_refused(tmp_path):
    item = ITEM | {"passages": [passage | {"no_res_prob": 0.5} for passage in ITEM["passages"]]}
    (tmp_path / "in.json").write_text(json.dumps(item))
    words = ["--reward", "udcg", "--model", "m", "--input", tmp_path / "in.json", "--output"]
    os.mkfifo(tmp_path / "pipe")
    assert "is not a regular file" in run(*words, tmp_path / "pipe", ok=False)
    assert "is a folder" in run(*words, ".", ok=False)
    with FileLock(tmp_path / ".out.jsonl.lock"):
        assert "another process is writing" in run(*words, tmp_path / "out.jsonl", ok=False)
    run(*words, tmp_path / "out.jsonl")


def test_a_bad_start_leaves_nothing_behind(random_llama, tmp_path):
    (tmp_path / "in.jsonl").write_text(json.dumps(ITEM) + "\n")
    (tmp_path / "folder.jsonl").mkdir()
    words = ["--model", random_llama, "--input", tmp_path / "in.jsonl", "--max_new_tokens", "4"]
    output = run(*words, "--output", tmp_path / "folder.jsonl", ok=False)
    assert "is a folder" in output and not (tmp_path / "folder.jsonl.part").exists()
    out = ["--output", tmp_path / "out.jsonl"]
    seper = ["--reward", "delta_seper_soft", "--entailment"]
    assert "no folder at" in run(*words, *out, *seper, tmp_path / "nowhere", ok=False)
    output = run(*words, *out, *seper, "exact", "--sample_tokens", "1000000", ok=False)
    assert "`--sample_tokens` must be below the context" in output
    assert "the device `foo` does not exist" in run(*words, *out, "--device", "foo", ok=False)
    run(*words, *out)
    assert "out.jsonl already exists and will be replaced" in run(*words, *out)


def test_a_bad_file_is_named_with_its_line(tmp_path):
    (tmp_path / "in.jsonl").write_text(json.dumps(ITEM) + "\n{oops\n")
    output = run("--model", "m", "--input", tmp_path / "in.jsonl", "--output", tmp_path / "o.jsonl", ok=False)
    assert "in.jsonl:2: not valid JSON" in output
    output = run("--model", "m", "--input", tmp_path / "no.jsonl", "--output", tmp_path / "o.jsonl", ok=False)
    assert "no.jsonl" in output
