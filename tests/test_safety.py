"""Untrusted models, settings and data: no code runs, nothing is written elsewhere, and no secret is stored."""

import json
import pickle
import shutil
from pathlib import Path

import pytest

from core.cli import run_command
from core.errors import InputError
from core.language_model import load_language_model
from retrieval.encoder import load_model
from rewriter.import_chats import main as import_chats
from scoring.entailment import load_classifier
from tests.conftest import ROOT, call, write_lines
from tests.openai_servers import ScriptedServer, running
from train.compare import main as compare
from train.dpo import main
from train.export.__main__ import main as export

MODEL = ROOT / "configs/tiny-model"
SECRETS = {name: f"planted-{name.lower()}" for name in ("HF_TOKEN", "WANDB_API_KEY", "OPENAI_API_KEY")}
MARKUP = "<script>alert(1)</script>"  # one word: the server's answers begin with the last word of the question
BAD_IDS = ("../../../escaped", "..", "~/escaped", "a/../../../../escaped")


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture
def trap(tmp_path):
    """A file that the code of a malicious model would create."""
    yield tmp_path / "executed"
    assert not (tmp_path / "executed").exists()


def pickled_model(folder, trap):
    """The tiny model with a pickle in place of its safetensors."""
    shutil.copytree(MODEL, folder)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(trap)))
    return folder


def model_with_code(folder, trap, **changes):
    """The tiny model with code for its configuration, model and tokenizer, and changes to its configuration."""
    shutil.copytree(MODEL, folder)
    (folder / "own_code.py").write_text(f"from pathlib import Path\nPath({str(trap)!r}).touch()\n")
    auto_map = {name: "own_code.Any" for name in ("AutoConfig", "AutoModel", "AutoModelForCausalLM")}
    classes = {"config.json": auto_map, "tokenizer_config.json": {"AutoTokenizer": ["own_code.Any", "own_code.Any"]}}
    for file, code in classes.items():
        values = json.loads((folder / file).read_text()) | {"auto_map": code} | changes
        (folder / file).write_text(json.dumps(values))
    return folder


def test_a_pickled_model_is_refused(tmp_path, trap, capsys):
    model = pickled_model(tmp_path / "model", trap)
    files = {"turns": {"id": "t", "history": [], "question": "Who?"}, "corpus": {"id": "d", "text": "Ann Lee."}}
    paths = {name: write_lines(tmp_path / f"{name}.jsonl", [record]) for name, record in files.items()}
    words = ["--data.train", paths["turns"], "--data.corpus", paths["corpus"], "--run.dir", str(tmp_path / "run")]
    with pytest.raises(SystemExit) as end:
        run_command(lambda: main([*words, "--rewriter.model", str(model), "--run.until", "candidates"]))
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert end.value.code == 2 and f"the model `{model}` cannot be loaded: " in line and "safetensors" in line


def test_a_model_with_code_of_its_own_is_refused(tmp_path, trap):
    model = str(model_with_code(tmp_path / "model", trap, model_type="other"))
    for load in (load_language_model, lambda name: load_model(name, "mean", "float32"), load_classifier):
        with pytest.raises(InputError) as error:
            load(model)
        assert model in str(error.value) and "\n" not in str(error.value)


def test_code_beside_a_model_that_transformers_knows_is_not_run(tmp_path, trap):
    lm = load_language_model(str(model_with_code(tmp_path / "model", trap)))
    assert type(lm.model).__module__.startswith("transformers.")


def test_a_pickled_adapter_is_refused(tmp_path, trap):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "target_modules": ["q_proj"]}))
    (tmp_path / "adapter_model.bin").write_bytes(pickle.dumps(Payload(trap)))
    with pytest.raises(InputError, match=r"has no adapter_model.safetensors; only safetensors weights are loaded"):
        load_language_model(str(MODEL), str(tmp_path))


def tree(folder, *apart):
    """Path, and for a file its time, of everything in a folder but some paths."""
    paths = (path for path in folder.rglob("*") if not any(path.is_relative_to(each) for each in apart))
    return {path: path.stat().st_mtime_ns if path.is_file() else None for path in paths}


@pytest.mark.parametrize(
    ("command", "flags", "expected"),
    [
        (main, ["--data.sets", "{../x: {train: t}}"], "`data.sets` has the name '../x'; use letters, digits"),
        (main, ["--run.until", "../x"], "`run.until`: there is no stage `../x`"),
        (main, ["--run.only", "../x"], "`run.only`: there is no stage `../x`"),
        (main, ["--run.redo_from", "../x"], "`run.redo_from`: there is no stage `../x`"),
        (main, ["--sft.output_dir", "/x"], "`sft.output_dir` cannot be set: files go to `run.dir`"),
        (compare, ["--rewards", "../x"], "`--rewards ../x`: known: key_entropy, entropy"),
    ],
)
def test_settings_that_would_write_elsewhere_are_refused(tmp_path, command, flags, expected):
    (tmp_path / "x").mkdir()
    assert expected in call(command, "--run.dir", tmp_path / "run", *flags, ok=False)
    assert [path.name for path in tmp_path.iterdir()] in (["x"], ["run", "x"], ["x", "run"])


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A whole run with bad ids, markup and planted secrets, with its exports and all output. The rewrites of the first
    round come from a server that repeats the markup."""
    root = tmp_path_factory.mktemp("root")
    folder, cache = root / "a/b/c", root / "cache"
    ids = [*BAD_IDS, str(root / "absolute")]
    turns = [
        {"id": name, "conversation": name, "history": [], "question": f"Which number has {MARKUP}", "answers": ["7"],
         "relevant": {ids[number]: 1}, "rewrite": f"number {number}"}
        for number, name in enumerate(ids)
    ]  # fmt: skip
    documents = [{"id": name, "text": f"Number {number} has {MARKUP}"} for number, name in enumerate(ids)]
    chats = [{"id": name, "messages": [{"role": "user", "content": MARKUP}]} for name in ids]
    files = {"turns": turns, "corpus": documents, "chats": chats}
    paths = {name: write_lines(folder / f"{name}.jsonl", records) for name, records in files.items()}
    (root / "work").mkdir()
    before = tree(root)
    with pytest.MonkeyPatch.context() as patch, running(ScriptedServer()) as server:
        patch.chdir(root / "work")
        patch.setenv("HOME", str(root))
        patch.setenv("XDG_CACHE_HOME", str(cache))
        for name, value in SECRETS.items():
            patch.setenv(name, value)
        output = call(import_chats, "--from", paths["chats"], "--output", folder / "run/imported.jsonl")
        output += call(
            main, "--config", ROOT / "configs/quickstart.yaml", "--run.dir", folder / "run",
            "--data.format", "records", "--data.train", paths["turns"], "--data.test", paths["turns"],
            "--data.corpus", paths["corpus"], "--rewriter.model", MODEL, "--rewriter.url", server.url,
            "--rewriter.served_model", "m", "--rewriter.n", 4, "--rewriter.include", "[history]",
            "--generator.max_new_tokens", 3, "--rewriter.max_new_tokens", 3,
            "--pairs.drop_fraction", 0, "--retrieval.k", 1, "--train.rounds", 1, "--sft.num_train_epochs", 1,
            "--dpo.num_train_epochs", 1, "--evaluation.resamples", 10, "--run.threads", 1,
            "--evaluation.systems", "[original, base, dpo, reference]",
        )  # fmt: skip
        for kind in ("merged", "pairs"):
            output += call(export, folder / "run", f"--{kind}", folder / f"run/{kind}")
        keys = {headers["authorization"] for headers, _ in server.requests}
    assert keys == {f"Bearer {SECRETS['OPENAI_API_KEY']}"}
    return folder / "run", before, tree(root, folder / "run", cache), output


def test_ids_cannot_write_outside_the_run_folder_and_the_cache(hostile):
    _, before, after, _ = hostile
    assert after == before


def test_secrets_of_the_environment_are_in_no_file_and_not_in_the_output(hostile):
    run, _, _, output = hostile
    texts = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert {"run.json", "manifest.json", "report.html", "README.md"} <= {path.name for path in texts}
    for secret in SECRETS.values():
        assert secret not in output
        assert not [path for path, content in texts.items() if secret.encode() in content]


def test_markup_of_data_and_models_stays_text(hostile):
    run = hostile[0]
    page, escaped = (run / "report.html").read_text(), MARKUP.replace("<", "&lt;").replace(">", "&gt;")
    assert f"Which number has {escaped}" in page and f"Number 0 has {escaped}" in page  # a question, a document
    (record, *_) = map(json.loads, (run / "evaluation/records.jsonl").read_text().splitlines())
    query = record["systems"]["base"]["query"]
    assert query.startswith(f"{MARKUP} ") and query.replace(MARKUP, escaped) in page  # a model's output
    for name in ("report.html", "evaluation/table.md", "merged/README.md", "pairs/README.md"):
        assert "<script>alert" not in (run / name).read_text()
