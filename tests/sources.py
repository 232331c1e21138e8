"""Facts of the package's sources, each file parsed once for all tests that ask for them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Source(NamedTuple):
    """Parts of a module."""

    imports: frozenset[str]
    """Dotted names that it imports anywhere, with the names taken from each."""
    texts: tuple[str, ...]
    """Texts but for its docstrings; of a formatted one the parts between what is filled in."""
    attributes: frozenset[str]
    """Dotted names of which it takes an attribute."""
    calls: frozenset[str]
    """Functions that it calls, without what precedes the last dot."""
    classes: tuple[str, ...]
    """Public classes."""
    renamed: tuple[str, ...]
    """Attributes of modules of the package that it assigns to names of its own, but for constants."""


def modules_of(package: str) -> dict[str, Path]:
    """Every module of ``package``, itself included, by its dotted name; empty if there is no such package yet."""
    names = {}
    for path in sorted(ROOT.joinpath(*package.split(".")).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


@cache
def sources_of(package: str) -> dict[str, Source]:
    """Every module of ``package``."""
    return {name: _source(name, path) for name, path in modules_of(package).items()}


@cache
def parsed(text: str) -> ast.Module:
    """The tree of a source, which nobody may change."""
    return ast.parse(text)


@cache
def _source(name: str, path: Path) -> Source:
    tree = parsed(path.read_text(encoding="utf-8"))
    nodes = [*ast.walk(tree)]
    statements = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    texts = (node for node in nodes if isinstance(node, ast.Constant) and id(node) not in statements)
    return Source(
        imports_of(tree, name if path.name == "__init__.py" else name.rpartition(".")[0]),
        tuple(node.value for node in texts if isinstance(node.value, str)),
        frozenset(dotted(node) for node in nodes if isinstance(node, ast.Attribute)),
        frozenset(dotted(node.func).rpartition(".")[2] for node in nodes if isinstance(node, ast.Call)),
        tuple(node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")),
        tuple(_renamed(tree)),
    )


def imports_of(tree: ast.AST, package: str) -> frozenset[str]:
    """Dotted names that a module of ``package`` imports anywhere, with the names taken from each."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*above, *filter(None, [node.module])])
            found |= {origin} | {f"{origin}.{alias.name}" for alias in node.names}
    return frozenset(found)


def dotted(node: ast.expr) -> str:
    """The name of a chain of attributes; empty where anything but a name begins it, whose attributes count all the
    same."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _renamed(tree: ast.Module) -> Iterator[str]:
    modules = modules_of_package()
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    ours = {
        part.asname or part.name for node in imports for part in node.names if f"{node.module}.{part.name}" in modules
    }
    for node in tree.body:
        if isinstance(node, ast.Assign) and not ast.unparse(node.targets[0]).isupper():
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            for value in values:
                if isinstance(value, ast.Attribute) and dotted(value.value) in ours:
                    yield dotted(value)


@cache
def modules_of_package() -> frozenset[str]:
    """Names of all modules."""
    return frozenset(modules_of("probe"))
