"""The import order is one-way, light modules stay light, and no script shadows an installed module."""

import ast
import sys
from collections.abc import Iterable
from graphlib import TopologicalSorter

from tests.conftest import ROOT, finish

MAY_IMPORT = {
    "core": {"core"},
    "rewriter": {"core", "rewriter"},
    "retrieval": {"core", "retrieval"},
    "scoring": {"core", "rewriter", "retrieval", "scoring"},
    "train": {"core", "rewriter", "retrieval", "scoring", "train"},
}
FILES = {path: ast.parse(path.read_text()) for package in MAY_IMPORT for path in (ROOT / package).rglob("*.py")}


def imported(nodes: Iterable[ast.AST]) -> set[str]:
    """The names in import statements: modules, and objects imported from them."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def module_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_no_import_cycles():
    """Checks the imports at the top of files."""
    modules = {module_of(path): imported(tree.body) for path, tree in FILES.items()}
    graph = {module: names & modules.keys() - {module} for module, names in modules.items()}
    assert "core.records" in graph["train.pipeline"]
    TopologicalSorter(graph).prepare()  # raises a CycleError that names the cycle


def test_imports_inside_functions_are_few():
    """Commands parse flags before slow imports, and import optional packages only when they use them."""
    inside = {
        (path.name, node.lineno)
        for path, tree in FILES.items()
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert len(inside) <= 25, sorted(inside)


def test_imports_go_one_way():
    assert len(FILES) > 25
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path, tree in FILES.items()
        for name in imported(ast.walk(tree))
        if name.split(".")[0] in MAY_IMPORT.keys() - MAY_IMPORT[path.relative_to(ROOT).parts[0]]
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
    "train.export.__main__", "train.report.__main__", "train.tiny.pretrain", "train.tiny.world",
)  # fmt: skip
IMPORT_EACH = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    print(name, *sys.modules.keys() & {"torch", "transformers", "trl", "peft", "datasets", "faiss"})
"""


def test_light_modules_and_commands_import_nothing_heavy():
    """The first name with more than itself on its line imports something heavy."""
    output = finish([sys.executable, "-c", IMPORT_EACH, *LIGHT, *COMMANDS])
    assert output.splitlines() == [*LIGHT, *COMMANDS]
