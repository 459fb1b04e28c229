"""The import order is one-way, light modules stay light, and no script shadows an installed module."""

import ast
import subprocess
import sys

from tests.conftest import ROOT

MAY_IMPORT = {
    "core": {"core"},
    "rewriter": {"core", "rewriter"},
    "retrieval": {"core", "retrieval"},
    "scoring": {"core", "rewriter", "retrieval", "scoring"},
    "train": {"core", "rewriter", "retrieval", "scoring", "train"},
}


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)


def test_imports_go_one_way():
    files = [path for package in MAY_IMPORT for path in (ROOT / package).rglob("*.py")]
    assert len(files) > 25
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files
        for name in imported(path)
        if name in MAY_IMPORT and name not in MAY_IMPORT[path.relative_to(ROOT).parts[0]]
    ]
    assert wrong == []


def test_no_file_of_train_shadows_a_library():
    taken = {
        "datasets",
        "evaluate",
        "peft",
        "trl",
        "tokenize",
        "accelerate",
        "transformers",
        "torch",
    } | sys.stdlib_module_names
    assert {path.stem for path in (ROOT / "train").glob("*.py")} & (taken - {"__init__"}) == set()


def test_plain_modules_import_no_torch():
    light = [
        "core.settings", "core.artifacts", "core.records", "retrieval.metrics", "retrieval.analyzer",
        "retrieval.dense", "retrieval.lucene", "scoring.pairs", "scoring.grogu", "rewriter.conversations",
        "rewriter.convert", "train.tiny_world", "retrieval.engines", "train.pool", "train.dpo",
    ]  # fmt: skip
    code = f"import sys, {', '.join(light)}; sys.exit(bool({{'torch', 'transformers', 'trl'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
