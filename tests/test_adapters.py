"""The two adapters fulfil one contract, in code of their own."""

from __future__ import annotations

import ast
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from probe.core.backend.protocols import Groups, Hooks, Tensors
from tests.required import require

PROBE = Path(__file__).parent.parent / "probe"
FRAMEWORKS = ("pytorch", "mindspore")
CONTRACT = {"tensors": Tensors, "hooks": Hooks, "groups": Groups}
TOGETHER = 2
"""As many missing functions mypy names; of more it says only that it does not fit."""
MYPY = """[mypy]
ignore_missing_imports = true
[mypy-torch.*,mindspore.*,numpy.*,pydantic.*,tensorboardX.*,yaml.*]
follow_imports = skip
"""
SECONDS = count(1_000_000_000)


def functions(module: str) -> list[str]:
    return sorted(name for name, _ in inspect.getmembers(CONTRACT[module], inspect.isfunction) if name[0] != "_")


def batches() -> Iterator[list[tuple[str, str]]]:
    """All functions of the contract, as many at a time as mypy can name in each module."""
    for first in range(0, max(len(functions(module)) for module in CONTRACT), TOGETHER):
        yield [(module, name) for module in CONTRACT for name in functions(module)[first : first + TOGETHER]]


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
    shutil.copytree(PROBE, tmp_path / "probe", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "mypy.ini").write_text(MYPY, encoding="utf-8")
    assert check(tmp_path) == {"pytorch": "", "mindspore": ""}, "the copy must be right before anything is deleted"
    for batch in batches():
        originals = {}
        for framework in FRAMEWORKS:
            for module, name in batch:
                path = tmp_path / "probe" / framework / f"{module}.py"
                originals.setdefault(path, path.read_text(encoding="utf-8"))
                deleting = Deleting(name)
                changed = ast.unparse(deleting.visit(ast.parse(path.read_text(encoding="utf-8"))))
                assert deleting.found, f"{framework}/{module}.py has no {name}"
                write(path, changed)
        said = check(tmp_path)
        for framework in FRAMEWORKS:
            for _, name in batch:
                assert re.search(rf"note: .*\b{name}\b", said[framework]), f"{framework} {name}: {said[framework]}"
        for path, text in originals.items():
            write(path, text)


def write(path: Path, text: str) -> None:
    """Writes in a second of its own: mypy takes a file of the same second and size for the one that it has read."""
    path.write_text(text, encoding="utf-8")
    second = next(SECONDS)
    os.utime(path, (second, second))


def check(copy: Path) -> dict[str, str]:
    """Messages of mypy about each adapter in ``copy``."""
    require("mypy")
    adapters = {framework: f"probe/{framework}/adapter.py" for framework in FRAMEWORKS}
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", *adapters.values()]
    said = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=300, check=False).stdout
    return {
        framework: "\n".join(line for line in said.splitlines() if line.startswith(path))
        for framework, path in adapters.items()
    }


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
