"""Settings: every YAML file parses, every setting is used, and each mistake has its message."""

import re
from dataclasses import asdict

import pytest
import yaml

from core.cli import read_settings
from core.data_settings import DataFiles
from core.errors import InputError
from core.schema import settings_of
from core.settings import RewriteExample, Settings
from core.settings_page import settings_page
from tests.conftest import ROOT

QUICKSTART = ["--config", str(ROOT / "configs/quickstart.yaml")]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))


def settings_with(*flags):
    return read_settings("", ["--run.dir", "x", *flags])


def message_of(*argv):
    """The error message of `read_settings` for a command line."""
    with pytest.raises(InputError) as error:
        read_settings("", list(argv))
    return str(error.value)


# ------------------------------------------------------------------ what is read


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_yaml_parses_and_says_how_to_launch_it(path):
    assert read_settings("", ["--config", str(path)]).run.dir
    assert f"accelerate launch train/dpo.py --config configs/{path.name}" in path.read_text()


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_passed_on_keys_are_known_to_the_libraries(path):
    from peft import LoraConfig

    from train.trainer_config import LORA, build_config, trainer_config

    settings = read_settings("", ["--config", str(path)])
    assert build_config("lora", settings.lora, LoraConfig, LORA).r > 0
    for section in ("sft", "dpo"):
        assert trainer_config(settings, section, settings.run.path).seed == settings.run.seed


def test_every_setting_is_read_somewhere():
    """Each is an attribute of a name that the code uses for its section."""
    own = {"settings.py", "data_settings.py", "retrieval_settings.py"}
    source = "\n".join(
        path.read_text()
        for package in ("core", "rewriter", "retrieval", "scoring", "train")
        for path in (ROOT / package).glob("*.py")
        if path.name not in own
    )
    holders = {"rewriter": "rewriter|options", "generator": "generator|options", "scoring": "scoring|rule"}
    unread = []
    for setting in settings_of(Settings):
        section, _, name = setting.name.partition(".")
        if name and not re.search(rf"\b({holders.get(section, section)}|settings)\.{name}\b", source):
            unread.append(setting.name)
    assert unread == ["data.qrels", "data.train_qrels"]  # read by name


def test_flags_override_yaml():
    settings = read_settings("", [*QUICKSTART, "--dpo.beta", "0.2", "--pairs.drop_fraction=0.3", "--run.seed", "7"])
    assert (settings.dpo["beta"], settings.pairs.drop_fraction, settings.run.seed) == (0.2, 0.3, 7)
    assert settings.dpo["num_train_epochs"] == read_settings("", QUICKSTART).dpo["num_train_epochs"]


def test_a_later_file_overrides_an_earlier_one(tmp_path):
    (tmp_path / "more.yaml").write_text("run: {seed: 9}\ndpo: {beta: 1}\n")
    first, both = (read_settings("", [*QUICKSTART, *more]) for more in ([], ["--config", str(tmp_path / "more.yaml")]))
    assert (both.run.dir, both.run.seed, both.dpo) == (first.run.dir, 9, first.dpo | {"beta": 1})


@pytest.mark.parametrize(
    ("text", "value"), [("1e-4", 1e-4), ("5E-06", 5e-6), ("1.5e3", 1500.0), ("true", True), ("[1, a]", [1, "a"])]
)
def test_flags_of_other_libraries_are_yaml(text, value):
    assert settings_with("--dpo.some_key", text).dpo == {"some_key": value}


@pytest.mark.parametrize("text", ["2024", "true", "a: b", "[x", "~/runs", "- x"])
def test_texts_are_taken_as_they_are(text):
    assert read_settings("", [f"--run.dir={text}"]).run.dir == text


def test_null_is_none_where_a_setting_can_be_none():
    settings = read_settings("", [*QUICKSTART, "--rewriter.model", "null", "--run.limit", "null", "--run.dir", "null"])
    assert (settings.rewriter.model, settings.run.limit, settings.run.dir) == (None, None, "null")


def test_typed_examples_and_sets():
    example = "{conversation: 'user: Hi', rewrite: hello}"
    settings = settings_with("--rewriter.examples", f"[{example}]", "--data.sets", "{a: {train: t}}")
    assert settings.rewriter.examples == [RewriteExample(conversation="user: Hi", rewrite="hello")]
    assert settings.data.sets == {"a": DataFiles(train="t")}


def test_printed_settings_can_be_read_again(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        read_settings("", [*QUICKSTART, "--run.seed", "5", "--print_config"])
    printed = capsys.readouterr().out
    (tmp_path / "printed.yaml").write_text(printed)
    again = read_settings("", ["--config", str(tmp_path / "printed.yaml")])
    assert end.value.code == 0 and again.run.seed == 5 and asdict(again) == yaml.safe_load(printed)


def test_the_page_of_settings_is_current():
    assert (ROOT / "docs/settings.md").read_text() == settings_page(), "run python -m core.settings_page"


def test_every_default_is_allowed():
    for setting in settings_of(Settings):
        if setting.default:
            settings_with(f"--{setting.name}={setting.default}")


# ------------------------------------------------------------------ one setting


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        # unknown
        (
            ["--pairs.drop_fracton", "1"],
            "command line: unknown setting `pairs.drop_fracton`; did you mean `pairs.drop_fraction`?",
        ),
        (["--retreival.k", "1"], "command line: unknown setting `retreival`; did you mean `retrieval`?"),
        (
            ["--data.sets.a.trian", "x"],
            "command line: unknown setting `data.sets.a.trian`; did you mean `data.sets.a.train`?",
        ),
        (["--data.sets", "{a: {trian: x}}"], "unknown setting `data.sets.a.trian`; did you mean `data.sets.a.train`?"),
        (
            ["--seed", "1"],
            "command line: unknown setting `seed`; known: run, data, rewriter, generator, retrieval, scoring, pairs, "
            "train, evaluation, report, lora, sft, dpo.",
        ),
        (["run.seed"], "unrecognized arguments: run.seed; `--help` lists the flags."),
        # missing
        (["--run.seed"], "argument --run.seed: expected one argument; `--help` lists the flags."),
        (
            ["--rewriter.examples", "[{conversation: a}]"],
            "`rewriter.examples[0].rewrite` is not set; it must be a string that is not empty.",
        ),
        # type
        (["--run.limit", "x"], "`run.limit` must be a whole number >= 1, or null, got 'x'."),
        (["--rewriter.n", "2.0"], "`rewriter.n` must be a whole number >= 2, got 2.0."),
        (["--rewriter.temperature", "warm"], "`rewriter.temperature` must be a number >= 0.01, got 'warm'."),
        (["--evaluation.answers", "1"], "`evaluation.answers` must be true or false, got 1."),
        (
            ["--rewriter.include", "question"],
            "`rewriter.include` must be a list, each item one of question, history, got 'question'.",
        ),
        (["--scoring.weights", "{udcg: much}"], "`scoring.weights.udcg` must be a number, got 'much'."),
        (["--dpo", "3"], "`dpo` must be a mapping, got 3."),
        (
            ["--evaluation.systems", "[base"],
            "`evaluation.systems`: line 1 is not valid YAML: expected ',' or ']', but got '<stream end>'.",
        ),
        # range
        (["--rewriter.n", "1"], "`rewriter.n` must be a whole number >= 2, got 1."),
        (["--rewriter.top_p", "0"], "`rewriter.top_p` must be a number > 0 and <= 1, got 0."),
        (["--pairs.drop_fraction", "7"], "`pairs.drop_fraction` must be a number >= 0 and <= 1, got 7."),
        (["--run.seed", "-5"], "`run.seed` must be a whole number >= 0 and <= 4294967295, got -5."),
        (["--data.development_share", "1"], "`data.development_share` must be a number >= 0 and < 1, got 1."),
        (["--run.dir", " "], "`run.dir` must be a string that is not empty, got ' '."),
        # finite
        (["--retrieval.k1", ".inf"], "`retrieval.k1` must be a finite number, got inf."),
        (["--scoring.relevant_weight", ".nan"], "`scoring.relevant_weight` must be a finite number, got nan."),
        (["--sft.learning_rate", ".inf"], "`sft.learning_rate` must be a finite number, got inf."),
        # choice
        (["--rewriter.dtype", "int8"], "`rewriter.dtype` must be one of float32, bfloat16, float16, got 'int8'."),
        (
            ["--evaluation.systems", "[base, dpoo]"],
            "`evaluation.systems[1]` must be one of original, history, base, base_examples, sft, dpo, reference, got "
            "'dpoo'; "
            "did you mean `dpo`?",
        ),
    ],
)
def test_a_mistake_in_a_setting_is_named(flags, expected):
    assert message_of("--run.dir", "x", *flags) == expected


def test_the_run_folder_must_be_set():
    assert message_of() == "`run.dir` is not set; it must be a string that is not empty."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run:\n  sede: 1\nrewriter:\n  model: 3\n", "unknown setting `run.sede`; did you mean `run.seed`?"),
        ("runs: 3\n", "unknown setting `runs`; did you mean `run`?"),
        (
            "run:\n  dir: x\nrewriter:\n  model: m\nrun:\n  seed: 2\n",
            "line 5 is not valid YAML: the key `run` appears twice.",
        ),
        ("dpo:\n  beta: 1\n  beta: 2\n", "line 3 is not valid YAML: the key `beta` appears twice."),
        ("run: [x\n", "line 2 is not valid YAML: expected ',' or ']', but got '<stream end>'."),
        ("- run\n", "expected sections such as `run:` and `data:`, got ['run']."),
        (b"run: \xff", "not valid YAML: unacceptable character #x00ff: invalid start byte."),
    ],
)
def test_a_mistake_in_a_file_is_named_with_the_file(tmp_path, text, expected):
    path = tmp_path / "bad.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert message_of("--config", str(path)) == f"--config {path}: {expected}"


def test_a_missing_file_is_named():
    assert message_of("--config", "gone.yaml") == "--config gone.yaml: cannot be read (No such file or directory)."


def test_an_empty_section_is_named(tmp_path):
    (tmp_path / "bad.yaml").write_text("run: {dir: x}\npairs:\n")
    expected = "`pairs` must be a mapping with drop_fraction, min_gap, got None."
    assert message_of("--config", str(tmp_path / "bad.yaml")) == expected


def test_an_unknown_key_of_a_library_is_named():
    from train.trainer_config import trainer_config

    settings = read_settings("", [*QUICKSTART, "--dpo.lerning_rate", "1"])
    with pytest.raises(InputError, match="did you mean `learning_rate`"):
        trainer_config(settings, "dpo", settings.run.path)
