"""Candidates of the first round and `base` rewrites from a server: seeds, missing features, faults, resuming."""

import json
import subprocess
import sys
import time
from dataclasses import replace

import httpx2
import pytest
from transformers.utils.import_utils import is_serve_available

from core.errors import InputError
from core.settings import RewriterSettings
from rewriter import Rewriter
from rewriter.conversations import read_turns
from rewriter.prompts import normalized
from rewriter.rewriter import LocalBackend
from tests.conftest import QUICK, ROOT, call, lines, settings_of, write_lines
from tests.families import family
from tests.openai_servers import CUT, ScriptedServer, free_port, running, serving
from train.dpo import main
from train.pipeline import run_pipeline

QUESTIONS = [f"Where is place p{i}?" for i in range(10)]
KEY = "sk-planted-in-a-test"
HTML = (200, "<html>Welcome</html>")


@pytest.fixture
def server():
    with running(ScriptedServer()) as state:
        yield state


@pytest.fixture
def candidates(tmp_path):
    """A function that runs the stage with a server, and returns its records."""
    turns = [{"id": f"c{i}_1", "history": [], "question": question} for i, question in enumerate(QUESTIONS)]
    files = ["--data.train", write_lines(tmp_path / "turns.jsonl", turns), "--data.corpus"]
    files.append(write_lines(tmp_path / "corpus.jsonl", [{"id": "d0", "text": "Owls nest in barns."}]))

    def make(url, *flags, run="run"):
        run_pipeline(
            settings_of(
                "--run.dir", tmp_path / run, "--run.until", "candidates", "--rewriter.url", url,
                "--rewriter.served_model", "m", "--rewriter.n", "3", "--run.threads", "1", *files, *flags,
            )
        )  # fmt: skip
        return lines(tmp_path / run / "round-1/candidates")

    return make


def bodies(server):
    return [body for _, body in server.requests]


def test_samples_of_a_server_become_candidates(server, candidates, tmp_path):
    records = candidates(server.url, "--rewriter.temperature", "0.7", "--rewriter.top_p", "0.9", "--run.seed", "5")
    assert [record["id"] for record in records] == [f"c{i}_1" for i in range(10)]
    for record, question in zip(records, QUESTIONS, strict=True):
        texts = [candidate["text"] for candidate in record["candidates"]]
        assert [text.split()[0] for text in texts] == [question.split()[-1]] * 3
        assert [text.split()[2] for text in texts] == ["0", "1", "2"]
        assert all((c["logprob"], c["tokens"], c["query"]) == (-1.5, 3, c["text"]) for c in record["candidates"])
    assert len(server.requests) == 10 and len({body["seed"] for body in bodies(server)}) == 10
    for body in bodies(server):
        sampling = {name: body[name] for name in ("model", "n", "temperature", "top_p", "max_tokens", "logprobs")}
        assert sampling == {
            "model": "m", "n": 3, "temperature": 0.7, "top_p": 0.9, "max_tokens": 48, "logprobs": True,
        }  # fmt: skip
    plan = json.loads((tmp_path / "run/round-1/candidates/plan.json").read_text())
    assert plan["inputs"]["model"] == {"url": server.url, "served_model": "m"}


def test_the_seed_of_the_run_and_the_turn_decide_the_samples(server, candidates):
    one, same = (candidates(server.url, "--rewriter.concurrency", number, run=number) for number in ("1", "8"))
    assert one == same != candidates(server.url, "--run.seed", "2", run="other")


@pytest.mark.parametrize("n", ["ignored", "refused"])
@pytest.mark.parametrize("logprobs", ["yes", "ignored", "refused"])
def test_servers_without_n_or_log_probabilities(server, candidates, n, logprobs):
    server.n, server.logprobs = n, logprobs
    records = candidates(server.url, "--rewriter.concurrency", "1")
    samples = [candidate for record in records for candidate in record["candidates"]]
    assert len(samples) == 30 and all(candidate["text"].endswith(" 0") for candidate in samples)
    assert {candidate.get("logprob") for candidate in samples} == {-1.5 if logprobs == "yes" else None}
    refusals = 0 if "refused" not in (n, logprobs) else 1 if logprobs != "refused" else 2
    assert len(server.requests) == 30 + refusals  # what was rejected once is not requested again


def test_temporary_faults_change_nothing(server, candidates):
    undisturbed = candidates(server.url, run="undisturbed")
    server.faults = [(429, "{}"), (CUT, ""), (500, "{}"), (503, "busy"), (CUT, ""), (502, "{}")]
    assert candidates(server.url) == undisturbed and not server.faults
    assert len(server.requests) == 10 + 16


def test_a_request_without_an_answer_in_time_is_sent_again(server, candidates):
    undisturbed = candidates(server.url, run="undisturbed")
    server.seconds = 1.0
    with pytest.raises(InputError, match=r"/v1: Request timed out.* \(`rewriter.retries` and `rewriter.timeout`"):
        candidates(server.url, "--rewriter.timeout", "0.2", "--rewriter.retries", "0")
    server.seconds = 0.1
    assert candidates(server.url, "--rewriter.timeout", "5") == undisturbed


def test_slow_answers_come_together_up_to_the_concurrency(server, candidates):
    server.seconds = 0.2
    candidates(server.url, "--rewriter.concurrency", "5")
    assert server.most == 5


def test_a_half_answered_batch_resumes(server, candidates, tmp_path):
    undisturbed = candidates(server.url, run="undisturbed")
    flags = ["--rewriter.concurrency", "1", "--rewriter.retries", "1"]
    server.requests.clear()
    server.faults = [server.answer(body_of(i, undisturbed)) for i in range(4)]
    server.always = 500
    with pytest.raises(InputError, match="/v1: Error code: 500"):
        candidates(server.url, *flags)
    part = (tmp_path / "run/round-1/candidates/part-0.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in part] == [f"c{i}_1" for i in range(4)]
    server.always = 200
    server.requests.clear()
    assert candidates(server.url, *flags) == undisturbed
    asked = {body["messages"][-1]["content"].split()[-1] for body in bodies(server)}
    assert asked == {f"p{i}?" for i in range(4, 10)}


def body_of(i, records):
    """The request of the i-th record."""
    seed = int(records[i]["candidates"][0]["text"].split()[1])
    return {"messages": [{"content": QUESTIONS[i]}], "seed": seed, "n": 3, "logprobs": True, "model": "m"}


def test_a_prompt_that_the_server_refuses_is_a_failed_turn(server, candidates, tmp_path, caplog):
    server.refuses = "p3?"
    records = candidates(server.url, "--run.max_failed_fraction", "0.1")
    assert [len(record.get("candidates", ())) for record in records] == [3, 3, 3, 0, *[3] * 6]
    assert "/v1 refuses the prompt of `c3_1`: Error code: 400" in caplog.text
    manifest = json.loads((tmp_path / "run/round-1/candidates/manifest.json").read_text())
    assert manifest["counts"]["refused"] == manifest["counts"]["failed"] == 1
    with pytest.raises(InputError, match=r"1 of 10 turns failed \(reasons: 1 turns that the server refused\)"):
        candidates(server.url, "--run.max_failed_fraction", "0.05", run="strict")


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ((401, '{"message": "no key"}'), "401.*no key.*set OPENAI_API_KEY in the environment"),
        ((404, '{"message": "no such model"}'), "404.*are `rewriter.url` and `rewriter.served_model` right"),
        (HTML, "/v1: the reply is not a chat completion; it starts with .*Welcome"),
        ((200, '{"choices": []}'), "/v1: the reply is not a chat completion"),
    ],
)
def test_a_server_that_cannot_be_used_is_named(server, candidates, reply, message):
    server.faults = [reply] * 10
    with pytest.raises(InputError, match=message):
        candidates(server.url)


def test_the_key_comes_from_the_environment_and_is_written_nowhere(server, candidates, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    caplog.set_level("INFO")
    candidates(server.url)
    assert {headers["authorization"] for headers, _ in server.requests} == {f"Bearer {KEY}"}
    assert KEY not in caplog.text
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and KEY in path.read_text()]


def test_more_fields_of_a_request_are_recorded(server, candidates):
    flags = ["--rewriter.extra_body", "{chat_template_kwargs: {enable_thinking: false}}"]
    candidates(server.url, *flags)
    assert all(body["chat_template_kwargs"] == {"enable_thinking": False} for body in bodies(server))
    candidates(server.url, *flags, "--rewriter.retries", "1", "--rewriter.dtype", "bfloat16")  # do not affect records
    with pytest.raises(InputError, match="`settings.extra_body.chat_template_kwargs` was"):
        candidates(server.url)
    with pytest.raises(InputError, match="`inputs.model.url` was 'http://.*', is 'http://other/v1'"):
        candidates("http://other/v1", *flags)


@pytest.fixture(scope="module")
def rewriter(lm):
    return Rewriter(LocalBackend(lm), RewriterSettings(model=lm.name))


def test_candidates_of_our_own_server(rewriter, candidates):
    with serving(rewriter) as url:
        flags = ["--rewriter.max_new_tokens", "8", "--rewriter.include", "[question]"]
        records = candidates(f"{url}/v1", *flags)
        assert candidates(f"{url}/v1", *flags, run="again") == records
    for record in records:
        counts, sampled = record["counts"], [c for c in record["candidates"] if c.get("source", "sample") == "sample"]
        assert sum(c.get("count", 1) for c in sampled) + counts.get("empty", 0) == 3
        assert len({normalized(c["text"]) for c in record["candidates"]}) == len(record["candidates"])
        assert all("logprob" not in c for c in sampled)
    assert len({json.dumps(record["candidates"]) for record in records}) == 10


def test_base_rewrites_of_a_server_are_those_of_the_same_model_here(rewriter, random_llama, tmp_path):
    turns = [
        {"id": f"c{i}_1", "history": [], "question": question, "relevant": {"d0": 1}}
        for i, question in enumerate(QUESTIONS)
    ]
    files = ["--data.test", write_lines(tmp_path / "turns.jsonl", turns), "--data.corpus"]
    files.append(write_lines(tmp_path / "corpus.jsonl", [{"id": "d0", "text": "Owls nest in barns."}]))
    examples = json.dumps([{"conversation": "user: Who?", "rewrite": "Who is it?"}])

    def evaluate(run, *flags):
        run_pipeline(
            settings_of(
                "--run.dir", tmp_path / run, "--run.only", "evaluation", "--rewriter.max_new_tokens", "8", *files,
                "--rewriter.examples", examples, "--evaluation.systems", "[base, base_examples]",
                "--evaluation.answers", "false", "--run.threads", "1", *flags,
            )
        )  # fmt: skip
        return lines(tmp_path / run / "evaluation")

    with serving(rewriter) as url:
        served = evaluate("served", "--rewriter.url", f"{url}/v1", "--rewriter.served_model", "rewriter")
    assert served == evaluate("local", "--rewriter.model", random_llama)
    plan = json.loads((tmp_path / "served/evaluation/plan.json").read_text())
    assert plan["inputs"]["server"] == {"url": f"{url}/v1", "served_model": "rewriter"}


@pytest.mark.slow
def test_a_whole_run_with_a_server(tmp_path):
    """The server samples the first round and writes the `base` rewrites; the local model does the rest."""
    config = ["--config", ROOT / "configs/quickstart.yaml", "--run.dir", tmp_path, *QUICK]
    local = Rewriter.from_settings(RewriterSettings(model=str(ROOT / "configs/tiny-model")))
    with serving(local) as url:
        call(main, *config, "--rewriter.url", f"{url}/v1", "--rewriter.served_model", "rewriter")
    stages = ("round-1/candidates", "round-2/candidates", "evaluation")
    first, second, evaluation = (json.loads((tmp_path / name / "plan.json").read_text()) for name in stages)
    server = {"url": f"{url}/v1", "served_model": "rewriter"}
    assert first["inputs"]["model"] == evaluation["inputs"]["server"] == server
    assert isinstance(second["inputs"]["model"], str) and "url" not in second["settings"]
    records, turns = lines(tmp_path / "evaluation"), read_turns(tmp_path / "data/test.jsonl")[:24]
    trained = Rewriter.from_pretrained(tmp_path)
    untrained = Rewriter.from_settings(replace(trained.options, adapter=None))
    for system, rewriter in (("base", untrained), ("dpo", trained)):
        queries = [query for (query,) in rewriter.queries(turns)]
        assert [record["systems"][system]["query"] for record in records] == queries


@pytest.fixture(scope="module")
def transformers_serve(tmp_path_factory):
    """The address of `transformers serve`, and the name of its model, a random Llama. For a Qwen2, the server expects
    answers in Qwen's own chat format."""
    if not is_serve_available():
        pytest.skip("`transformers serve` is not installed; pip install 'transformers[serving]' -c constraints.txt")
    port, folder = free_port(), tmp_path_factory.mktemp("model")
    log, lm = folder / "log", family("llama")
    lm.model.save_pretrained(folder)
    lm.tokenizer.save_pretrained(folder)
    command = ["-c", "from transformers.cli.transformers import main; main()", "serve", str(folder)]
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, *command, "--port", str(port), "--device", "cpu"], stdout=output, stderr=output
        )
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                httpx2.get(f"http://localhost:{port}/health").raise_for_status()
                break
            except httpx2.HTTPError:
                assert time.monotonic() < deadline and process.poll() is None, log.read_text()
                time.sleep(0.2)
        yield f"http://localhost:{port}/v1", str(folder)
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.slow
def test_candidates_of_transformers_serve(transformers_serve, candidates):
    """It ignores `n` and log-probabilities, and samples only if the generation configuration enables sampling."""
    url, model = transformers_serve
    flags = ["--rewriter.served_model", model, "--rewriter.max_new_tokens", "8", "--rewriter.concurrency", "1"]
    greedy = candidates(url, *flags, run="greedy")
    assert all(len(record.get("candidates", ())) <= 1 for record in greedy)
    config = json.dumps({"generation_config": json.dumps({"do_sample": True, "top_k": 0})})
    sampled = candidates(url, *flags, "--rewriter.extra_body", config, run="sampled")
    counts = [len(record.get("candidates", ())) for record in sampled]
    assert sum(counts) > 15 and max(counts) == 3
    assert sampled == candidates(url, *flags, "--rewriter.extra_body", config, run="again")


@pytest.mark.slow
def test_greedy_rewrites_of_transformers_serve(transformers_serve):
    url, model = transformers_serve
    local = Rewriter.from_settings(RewriterSettings(model=model, max_new_tokens=8))
    remote = Rewriter.from_url(url, model, max_new_tokens=8)
    rewrites = [remote.rewrite([], question) for question in QUESTIONS[:4]]
    assert rewrites == [local.rewrite([], question) for question in QUESTIONS[:4]]
    assert not set(rewrites) & set(QUESTIONS)
