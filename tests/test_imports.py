"""The import order is one-way, light modules stay light, and no script shadows an installed module."""

import ast
import sys
from graphlib import TopologicalSorter

import pytest

from tests.conftest import ROOT, finish

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


def module_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_no_import_cycles():
    """Between files, of the imports at their top."""
    files = {module_of(path): path for package in MAY_IMPORT for path in (ROOT / package).rglob("*.py")}
    graph = {}
    for module, path in files.items():
        nodes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        for node in nodes:
            if isinstance(node, ast.ImportFrom):
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        graph[module] = names & files.keys() - {module}
    assert "core.records" in graph["train.pipeline"]
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle


def test_imports_inside_functions_are_few():
    """A command parses its flags before it imports what does the work; optional packages are imported when used."""
    inside = {
        (path.name, node.lineno)
        for package in MAY_IMPORT
        for path in (ROOT / package).rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert len(inside) <= 25, sorted(inside)


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
    """`accelerate launch train/dpo.py` puts `train/` first on the path."""
    libraries = {"datasets", "evaluate", "peft", "trl", "accelerate", "transformers", "torch"}
    names = {path.stem for path in (ROOT / "train").glob("*.py")} - {"__init__"}
    assert not names & (libraries | sys.stdlib_module_names)


LIGHT = (
    "core.settings", "core.cli", "core.artifacts", "core.records", "core.stages", "retrieval.metrics",
    "retrieval.analyzer", "scoring.grogu", "scoring.registry",
)  # fmt: skip
COMMANDS = (
    "rewriter.__main__", "rewriter.datasets.__main__", "retrieval.evaluate", "scoring.utility", "scoring.validity",
    "rewriter.import_chats", "rewriter.serve", "train.aggregate_seeds", "train.dpo", "train.compare", "train.chat",
    "train.export.__main__", "train.report.__main__",
)  # fmt: skip


@pytest.mark.parametrize("name", [*LIGHT, *COMMANDS])
def test_light_modules_and_commands_import_nothing_heavy(name):
    heavy = {"torch", "transformers", "trl", "peft", "datasets", "faiss"}
    code = f"import sys, {name}; print(*{heavy} & set(sys.modules))"
    assert finish([sys.executable, "-c", code]).strip() == ""
