"""Python as a configuration: literal assignments at the top of a file, as InternEvo and mmengine have them.

The file is parsed and never run: a value that only a run would give is an :class:`UnrunCode`.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from probe.core.config.errors import UnrunCode

Lines = dict[tuple[str, ...], int]
_LONGEST = 10_000
"""Most characters, and most elements, of a value that is computed."""
_HIGHEST = 1 << 64
"""Limit of numbers that are computed."""
_OPERATIONS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: lambda base, power: base**power if abs(power) <= 64 else _refuse(),
}


_ASSIGNMENT = re.compile(r"^monitor\s*=\s*(?:dict\(|\{)", re.MULTILINE)


def has_assignments(text: str) -> bool:
    """Return whether a text has an assignment such as ``monitor = dict(...)``."""
    return _ASSIGNMENT.search(text) is not None


class _NoLiteralError(Exception):
    """A value that is no literal."""


def _refuse() -> Any:
    raise _NoLiteralError


class PythonText:
    """Assignments at the top of a file.

    Args:
        text: the file.

    Raises:
        SyntaxError: if it is no Python.
    """

    def __init__(self, text: str) -> None:
        self.values: dict[str, Any] = {}
        """Values by name; an :class:`UnrunCode` for one that is no literal."""
        self._nodes: dict[str, ast.AST] = {}
        for statement in ast.parse(text).body:
            self._read(statement)

    def lines(self) -> Lines:
        """Return the line of each key, by its path."""
        found: Lines = {}
        for name, node in self._nodes.items():
            self._add_lines((name,), node, found)
        return found

    def _read(self, statement: ast.stmt) -> None:
        target: ast.expr | None = None
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
        elif isinstance(statement, ast.AnnAssign):
            target = statement.target
        value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
        if value is not None and isinstance(target, ast.Name):
            self.values[target.id], self._nodes[target.id] = self._value(value), value
        elif value is not None and isinstance(target, ast.Subscript) and self._put(target, value):
            return
        elif not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Expr):
            self._forget(statement)

    def _forget(self, statement: ast.stmt) -> None:
        """Take the names that a statement may change for expressions."""
        for node in ast.walk(statement):
            changes = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del)
            inside = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del)
            name = _root(node) if changes or inside else None
            if name is not None:
                self.values[name], self._nodes[name] = UnrunCode(ast.unparse(statement)), statement

    def _put(self, target: ast.Subscript, value: ast.expr) -> bool:
        """Assign to a key of a mapping; return whether all of its path is known."""
        try:
            keys = list(self._keys(target))
        except _NoLiteralError:
            return False
        mapping: Any = self.values
        for key in keys[:-1]:
            mapping = mapping.get(key) if isinstance(mapping, dict) else None
        if not isinstance(mapping, dict):
            return False
        mapping[keys[-1]] = self._value(value)
        return True

    def _keys(self, node: ast.expr) -> list[Any]:
        if isinstance(node, ast.Name):
            return [node.id]
        if isinstance(node, ast.Subscript):
            return [*self._keys(node.value), self._literal(node.slice)]
        raise _NoLiteralError

    def _value(self, node: ast.expr) -> Any:
        """Return a value; of a mapping or list, each entry by itself."""
        if isinstance(node, ast.List | ast.Tuple):
            return [self._value(each) for each in node.elts]
        if (pairs := _pairs(node)) is not None:
            mapping: dict[Any, Any] = {}
            for key, value in pairs:
                below = self._value(value)
                if key is None and not isinstance(below, dict):
                    return UnrunCode(ast.unparse(node))
                if key is None:
                    mapping |= below
                else:
                    mapping[self._key(key)] = below
            return mapping
        try:
            return self._literal(node)
        except (_NoLiteralError, ArithmeticError, TypeError, ValueError):
            return UnrunCode(ast.unparse(node))

    def _key(self, node: ast.expr | str) -> Any:
        if isinstance(node, str):
            return node
        value = self._value(node)
        return value if isinstance(value, str | int | float | bool) else ast.unparse(node)

    def _literal(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name) and not isinstance(value := self.values.get(node.id, _NoLiteralError), UnrunCode):
            return value if value is not _NoLiteralError else _refuse()
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd | ast.Not):
            operand = self._literal(node.operand)
            return (
                not operand if isinstance(node.op, ast.Not) else -operand if isinstance(node.op, ast.USub) else operand
            )
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
            return _computed(type(node.op), self._literal(node.left), self._literal(node.right))
        if isinstance(node, ast.JoinedStr):
            return "".join(self._text(part) for part in node.values)
        raise _NoLiteralError

    def _text(self, part: ast.expr) -> str:
        if isinstance(part, ast.FormattedValue):
            if part.format_spec is not None or part.conversion != -1:
                raise _NoLiteralError
            return str(self._literal(part.value))
        return str(self._literal(part))

    def _add_lines(self, path: tuple[str, ...], node: ast.AST, found: Lines) -> None:
        found[path] = getattr(node, "lineno", 1)
        if isinstance(node, ast.List | ast.Tuple):
            for number, each in enumerate(node.elts):
                self._add_lines((*path, str(number)), each, found)
        for key, value in (_pairs(node) or ()) if isinstance(node, ast.expr) else ():
            if key is not None:
                self._add_lines((*path, str(self._key(key))), value, found)


def _pairs(node: ast.expr) -> list[tuple[ast.expr | str | None, ast.expr]] | None:
    """Return the keys and values of ``{...}`` and ``dict(...)``; the key of ``**mapping`` is None."""
    if isinstance(node, ast.Dict):
        return list(zip(node.keys, node.values, strict=True))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict" and not node.args:
        return [(word.arg, word.value) for word in node.keywords]
    return None


def _root(node: ast.AST) -> str | None:
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _computed(kind: type[ast.operator], left: Any, right: Any) -> Any:
    """Return the result of an operation on numbers, or of texts that are joined."""
    numbers = isinstance(left, int | float) and isinstance(right, int | float)
    texts = kind is ast.Add and isinstance(left, str) and isinstance(right, str)
    if not numbers and not (texts and len(left) + len(right) <= _LONGEST):
        raise _NoLiteralError
    if numbers and max(abs(left), abs(right)) > _HIGHEST:
        raise _NoLiteralError
    return _OPERATIONS[kind](left, right)
