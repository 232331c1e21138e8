"""The two adapters fulfil one contract, in code of their own."""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

from probe.core.backend.protocols import Groups, Hooks, Tensors
from tests.required import require

PROBE = Path(__file__).parent.parent / "probe"
FRAMEWORKS = ("pytorch", "mindspore")
CONTRACT = {"tensors": Tensors, "hooks": Hooks, "groups": Groups}


def functions(module: str) -> list[str]:
    return sorted(name for name, _ in inspect.getmembers(CONTRACT[module], inspect.isfunction) if name[0] != "_")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_function_of_the_contract_is_there(framework: str) -> None:
    """With the parameters that the contract names; their types, and results, are for mypy, which `make check` runs."""
    require({"pytorch": "torch"}.get(framework, framework))
    adapter = import_module(f"probe.{framework}.adapter").ADAPTER
    for module, protocol in CONTRACT.items():
        for name in functions(module):
            function = getattr(getattr(adapter, module), name)
            asked = [*inspect.signature(getattr(protocol, name)).parameters.values()][1:]
            named = {each.name: each for each in asked if each.kind is inspect.Parameter.KEYWORD_ONLY}
            positional = [each for each in asked if each.name not in named]
            if not inspect.isbuiltin(function):  # one in C has no signature
                inspect.signature(function).bind(*positional, **named)


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
