"""Settings: every YAML parses, every key is read somewhere, mistakes are named."""

import re
import sys
import time
from dataclasses import fields

import pytest

from core.errors import InputError
from core.read_settings import read_settings
from core.settings import PASSED_ON, SECTIONS
from tests.conftest import ROOT, finish

QUICKSTART = ["--config", str(ROOT / "configs/quickstart.yaml")]
HTTP = ["--retrieval.engine", "http", "--retrieval.index", "i"]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_yaml_parses_and_says_how_to_launch_it(path):
    assert read_settings("", ["--config", str(path)]).run.dir
    assert f"accelerate launch train/dpo.py --config configs/{path.name}" in path.read_text()


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_passed_on_keys_are_known_to_the_libraries(path):
    from train.options import lora_config, trainer_config

    settings = read_settings("", ["--config", str(path)])
    assert lora_config(settings).r > 0
    for section in ("sft", "dpo"):
        assert trainer_config(section, settings, settings.run_dir).seed == settings.run.seed


def test_every_setting_is_read_somewhere():
    source = "\n".join(
        path.read_text()
        for package in ("core", "rewriter", "retrieval", "scoring", "train")
        for path in (ROOT / package).glob("*.py")
    ).replace((ROOT / "core/settings.py").read_text(), "")
    unread = [
        f"{section}.{field.name}"
        for section, kind in SECTIONS.items()
        if section not in PASSED_ON
        for field in fields(kind)
        if not re.search(rf"\.{field.name}\b", source)
    ]
    assert [key for key in unread if key not in ("data.train", "data.test", "data.corpus")] == []  # by `data_file`


def test_flags_override_yaml():
    settings = read_settings("", [*QUICKSTART, "--dpo.beta", "0.2", "--pairs.drop_fraction=0.3", "--run.seed", "7"])
    assert (settings.dpo["beta"], settings.pairs.drop_fraction, settings.run.seed) == (0.2, 0.3, 7)
    assert settings.dpo["num_train_epochs"] == read_settings("", QUICKSTART).dpo["num_train_epochs"]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--pairs.drop_fracton", "1"], "did you mean `pairs.drop_fraction`"),
        (["--retreival.k", "1"], "did you mean `retrieval`"),
        (["--pairs.drop_fraction", "7"], "`pairs.drop_fraction` must be from 0 to 1, got 7"),
        (["--rewriter.n", "1"], "`rewriter.n` must be at least 2, got 1"),
        (["--rewriter.temperature", "0"], "`rewriter.temperature` must be at least 0.01"),
        (["--scoring.reward", "magic"], "magic"),
        (["--run.seed", "-5"], "`run.seed` must be from 0 to 4294967295, got -5"),
        (["--retrieval.k1", ".inf"], "`retrieval.k1` must be a finite number"),
        (["--evaluation.systems", "[base,base]"], "each once"),
        (["--evaluation.systems", "[base,dpoo]"], "did you mean `dpo`"),
        ([*HTTP, "--retrieval.url", "search.example.org"], "must read https://HOST:PORT, got 'search.example.org'"),
        ([*HTTP, "--retrieval.url", "https://ann:secret@x"], "`retrieval.url` holds credentials; take them out"),
        (
            ["--retrieval.engine", "http", "--retrieval.url", "http://x"],
            "`retrieval.engine: http` needs `retrieval.index`",
        ),
        (["--retrieval.engine", "hybrid", "--retrieval.hybrid", "[bm25s,http]"], "needs `retrieval.url`"),
        (["--retrieval.engine", "hybrid", "--retrieval.hybrid", "[bm25s,bm25s]"], "must name two engines"),
        (["--retrieval.engine", "hybrid"], "must name two engines, such as [bm25s, dense]; got []"),
        (
            ["--retrieval.engine", "bm25s", "--retrieval.bm25_variant", "okapi"],
            "`retrieval.bm25_variant: okapi` is for",
        ),
        (["--config", "nowhere.yaml"], "nowhere.yaml: cannot be read"),
        (["--run.until=score"], "`run.until` must be one of candidates, rankings,"),
        (["--run.until=score"], "got score; did you mean `scores`?"),
        (["--run.limit=x"], "`run.limit` must be a whole number or null, got x."),
    ],
)
def test_mistakes_are_named(flags, expected):
    with pytest.raises(InputError, match=re.escape(expected)):
        read_settings("", [*QUICKSTART, *flags])


def test_unknown_key_of_a_library_is_named():
    from train.options import trainer_config

    settings = read_settings("", [*QUICKSTART, "--dpo.lerning_rate", "1"])
    with pytest.raises(InputError, match="did you mean `learning_rate`"):
        trainer_config("dpo", settings, settings.run_dir)


def test_a_yaml_with_an_unknown_key_is_refused(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text("run:\n  dir: x\n  sede: 1\nrewriter:\n  model: m\n")
    with pytest.raises(InputError, match=r"bad.yaml: unknown setting `run.sede`; did you mean `run.seed`"):
        read_settings("", ["--config", str(path)])


def test_a_section_that_stands_twice_is_refused(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text("run:\n  dir: x\nrewriter:\n  model: m\nrun:\n  seed: 2\n")
    with pytest.raises(InputError, match="the key `run` stands twice"):
        read_settings("", ["--config", str(path)])


def test_help_is_quick():
    start = time.monotonic()
    assert "--pairs.drop_fraction" in finish([sys.executable, "train/dpo.py", "--help"])
    assert time.monotonic() - start < 6  # 2 s on an idle machine
