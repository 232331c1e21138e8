"""The two adapters fulfil one contract, in code of their own."""

from __future__ import annotations

import ast
import inspect
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from probe.core.backend.protocols import Groups, Hooks, Tensors
from tests.required import require

PROBE = Path(__file__).parent.parent / "probe"
FRAMEWORKS = ("pytorch", "mindspore")
CONTRACT = {"tensors": Tensors, "hooks": Hooks, "groups": Groups}
MYPY = """[mypy]
ignore_missing_imports = true
[mypy-torch.*,mindspore.*,numpy.*,pydantic.*,tensorboardX.*,yaml.*]
follow_imports = skip
"""


def functions(module: str) -> list[str]:
    return sorted(name for name, _ in inspect.getmembers(CONTRACT[module], inspect.isfunction) if name[0] != "_")


class Deleting(ast.NodeTransformer):
    """Takes a function out of a module, whether it is defined there, imported or assigned."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.found = False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node.name == self.name and node.col_offset == 0:
            self.found, node.name = True, "_deleted"
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        for alias in node.names:
            if (alias.asname or alias.name) == self.name:
                self.found, alias.asname = True, "_deleted"
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        for each in ast.walk(node) if node.col_offset == 0 else ():
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store) and each.id == self.name:
                self.found, each.id = True, "_deleted"
        return node


@pytest.mark.slow
def test_mypy_names_every_function_that_an_adapter_lacks(tmp_path: Path) -> None:
    """Of each module there is one copy for each function that it lacks; mypy compares all with the contract at once."""
    shutil.copytree(PROBE, tmp_path / "probe", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "mypy.ini").write_text(MYPY, encoding="utf-8")
    lacking = [(module, name) for module in CONTRACT for name in functions(module)]
    for framework in FRAMEWORKS:
        folder = tmp_path / "probe" / framework
        compared = ["from probe.core.backend.protocols import Groups, Hooks, Tensors"]
        for module, name in lacking:
            deleting = Deleting(name)
            changed = ast.unparse(deleting.visit(ast.parse((folder / f"{module}.py").read_text(encoding="utf-8"))))
            assert deleting.found, f"{framework}/{module}.py has no {name}"
            (folder / f"{module}_without_{name}.py").write_text(changed, encoding="utf-8")
            compared.append(f"from probe.{framework} import {module}_without_{name}")
            compared.append(f"{module}_{name}: {CONTRACT[module].__name__} = {module}_without_{name}")
        (folder / "comparison.py").write_text("\n".join(compared) + "\n", encoding="utf-8")
    found = check(tmp_path, "adapter", "comparison")
    for framework in FRAMEWORKS:
        assert not found[framework, "adapter"], "the adapter must fit as it is"
        for n, (_, name) in enumerate(lacking):
            about = [line for line in found[framework, "comparison"] if int(line.split(":")[1]) == 2 * n + 3]
            assert re.search(rf"note: .*\b{name}\b", "\n".join(about)), f"{framework} {name}: {about}"


def check(copy: Path, *modules: str) -> dict[tuple[str, str], list[str]]:
    """Messages of mypy about modules of each framework in ``copy``."""
    require("mypy")
    paths = {(framework, module): f"probe/{framework}/{module}.py" for framework in FRAMEWORKS for module in modules}
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", *paths.values()]
    printed = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=300, check=False).stdout
    return {key: [line for line in printed.splitlines() if line.startswith(path)] for key, path in paths.items()}


def lines(framework: str) -> Counter[str]:
    """The lines of an adapter that say something of their own: no imports, docstrings, lists of names, signatures that
    the contract fixes, or lone keywords; with one name for either framework."""
    fixed = {name for module in CONTRACT for name in functions(module)}
    found: Counter[str] = Counter()
    for path in sorted((PROBE / framework).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(body := getattr(node, "body", None), list):
                node.body = [statement for statement in body if not is_said_elsewhere(statement)] or [ast.Pass()]
        text = re.sub(r"torch|mindspore|nn\.Cell|nn\.Module", "framework", ast.unparse(tree))
        said = (line.strip() for line in text.splitlines())
        found.update(
            line for line in said if len(line.split()) > 2 and not line.startswith(tuple(f"def {f}(" for f in fixed))
        )
    return found


def is_said_elsewhere(statement: ast.stmt) -> bool:
    is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    names = isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__"
    return is_text or names or isinstance(statement, ast.Import | ast.ImportFrom)


def test_the_adapters_do_not_repeat_each_other() -> None:
    """Code that both would have belongs to core."""
    ours, theirs = (lines(framework) for framework in FRAMEWORKS)
    equal = ours & theirs
    assert 2 * equal.total() < 0.1 * (ours.total() + theirs.total()), sorted(equal)
