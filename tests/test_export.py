"""Using a finished run: `train.chat`, and `train.export` with its cards and uploads."""

import base64
import io
import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rewriter import Rewriter
from tests.conftest import call
from train.chat import main as chat
from train.export.__main__ import main as export

HISTORY = [{"role": "user", "content": "Who is the boss of Ralva Cross?"}, {"role": "assistant", "content": "Ann Lee"}]
QUESTION = "What is her river?"


def test_flags_of_an_export_that_make_no_sense(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    for words, expected in [
        ([], "nothing to export: give `--merged DIR`, `--pairs DIR` or `--push_to_hub ID`"),
        (["--merged", "a", "--pairs", "b"], "cannot be combined; run the command once for each"),
        (["--pairs", tmp_path / "full"], "already exists; name a new folder"),
        (["--pairs", tmp_path / "new"], "is not a run folder: it has no run.json"),
    ]:
        assert expected in call(export, tmp_path, *words, ok=False)


@pytest.mark.slow
def test_chat_shows_what_is_retrieved(finished_run, monkeypatch):
    words = f"{HISTORY[0]['content']}\nAnn Lee\n{QUESTION}\n\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(words.encode())))
    output = call(chat, finished_run, "--documents", "2").splitlines()
    queries = [line.removeprefix("query:    ") for line in output if "query:    " in line]
    rewriter = Rewriter.from_pretrained(finished_run)
    assert [query.split("query:    ")[-1] for query in queries] == [
        rewriter.rewrite([], HISTORY[0]["content"]), rewriter.rewrite(HISTORY, QUESTION),
    ]  # fmt: skip
    assert sum(line.strip().startswith(("1. [", "2. [")) for line in output) == 4
    assert "`--dataset other`: " in call(chat, finished_run, "--dataset", "other", ok=False)


@pytest.mark.slow
def test_chat_builds_only_the_engine_of_its_data_set(finished_run, tmp_path, monkeypatch):
    run = shutil.copytree(finished_run, tmp_path / "run")
    values = json.loads((run / "run.json").read_text())
    files = {name: values["settings"]["data"][name] for name in ("train", "test", "corpus")}
    values["settings"]["data"] |= dict.fromkeys(files) | {"sets": {"first": files, "second": files}}
    values["settings"]["retrieval"]["engine"] = "auto"  # logs the engine that it selects
    (run / "run.json").write_text(json.dumps(values))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\n")))
    assert call(chat, run, "--dataset", "second").count("retrieval: rank_bm25 for") == 1


@pytest.mark.slow
def test_a_merged_model(finished_run, tmp_path):
    from huggingface_hub import ModelCard
    from transformers import AutoModelForCausalLM, AutoTokenizer

    call(export, finished_run, "--merged", tmp_path / "merged")
    merged = Rewriter.from_pretrained(tmp_path / "merged")
    expected = Rewriter.from_pretrained(finished_run).rewrite(HISTORY, QUESTION)
    assert merged.rewrite(HISTORY, QUESTION) == expected
    assert {path.suffix for path in (tmp_path / "merged").glob("model*")} == {".safetensors"}

    card = ModelCard.load(tmp_path / "merged/README.md")
    metrics = json.loads((finished_run / "evaluation/metrics.json").read_text())
    results = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert results["MRR@10"] == round(metrics["systems"]["dpo"]["MRR@10"], 4)
    assert card.data.library_name == "transformers" and "key_entropy" in card.text and "vllm serve" in card.text
    messages = json.loads(card.text.split("```json\n")[1].split("```")[0])
    assert [message["role"] for message in messages] == ["system", "user"]

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "merged")  # as the card says
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**inputs, max_new_tokens=24, do_sample=False)
    text = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True).strip()
    history = [{"role": "user", "content": "Who founded Acme?"}, {"role": "assistant", "content": "Ann Lee."}]
    assert text == merged.rewrite(history, "And where was she born?")


@pytest.mark.slow
def test_pairs_with_a_card(finished_run, tmp_path):
    from datasets import load_dataset
    from huggingface_hub import DatasetCard

    output = call(export, finished_run, "--pairs", tmp_path / "pairs")
    assert "they contain conversations" in output
    files = sorted(str(path) for path in (tmp_path / "pairs").glob("round-*.jsonl"))
    rows = load_dataset("json", data_files=files, split="train")
    assert {"prompt", "chosen", "rejected"} <= set(rows.column_names) and len(files) == 2
    card = DatasetCard.load(tmp_path / "pairs/README.md")
    assert "preference" in card.data.tags and "The prompts contain conversations" in card.text


class Hub(BaseHTTPRequestHandler):
    """The part of the Hub's protocol that an upload of small files needs; stores the files."""

    files: dict[str, bytes]

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        reply, address = {}, f"http://127.0.0.1:{self.server.server_port}/owner/name"
        if self.path == "/api/repos/create":
            self.server.created = json.loads(body)
            reply = {"url": address, "id": "owner/name"}
        elif "/preupload/" in self.path:
            names = [file["path"] for file in json.loads(body)["files"]]
            reply = {"files": [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]}
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.server.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            reply = {
                "success": True,
                "commitUrl": f"http://127.0.0.1:{self.server.server_port}/owner/name/commit/{'1' * 40}",
                "commitOid": "1" * 40,
            }
        self.answer(reply)

    def do_GET(self):
        self.answer({"type": "user", "name": "owner", "id": "owner/name", "sha": "1" * 40, "siblings": []})

    def answer(self, reply):
        content = json.dumps(reply).encode()
        self.send_response(200 if self.headers["Authorization"] == "Bearer planted-token" else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.files = {}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr("train.export.files.HUB", f"http://127.0.0.1:{server.server_port}")
    yield server
    server.shutdown()


@pytest.mark.slow
def test_an_upload(finished_run, hub, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_TOKEN", "planted-token")
    output = call(export, finished_run, "--push_to_hub", "owner/name")
    assert hub.created["visibility"] == "private" and "uploaded -> " in output and "planted-token" not in output
    assert {"README.md", "adapter_config.json", "adapter_model.safetensors", "rewriter.json"} <= hub.files.keys()
    assert hub.files["adapter_model.safetensors"] == (finished_run / "adapter/adapter_model.safetensors").read_bytes()
    assert b"vllm serve BASE_MODEL --enable-lora" in hub.files["README.md"]
    output = call(export, finished_run, "--pairs", tmp_path / "pairs", "--push_to_hub", "owner/name")
    assert "make sure that you may share them" in output and "round-2.jsonl" in hub.files
    monkeypatch.setenv("HF_TOKEN", "wrong")
    output = call(export, finished_run, "--push_to_hub", "owner/name", ok=False)
    assert "`--push_to_hub owner/name`: " in output and "log in with `hf auth login`" in output
