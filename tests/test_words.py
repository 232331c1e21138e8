"""Words of the code: glossary nouns and imperative verbs, and data that are logged, sent and received."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.sources import parsed

ROOT = Path(__file__).resolve().parent.parent
OPENING = re.compile(
    r"\W*(what|who|whom|whose|whoever|whatever|whether|where|how|which|why|that|those|these|it|they|so|as|of|"
    r"adds|admits|asks|begins|calls|carries|exchanges|finds|gives|goes|has|holds|judges|keeps|lets|logs|looks|makes|passes|"
    r"puts|raises|reads|reduces|refuses|remembers|reports|returns|runs|says|sends|sorts|switches|takes|tells|trains|waits|"
    r"watches|writes)\b",
    re.IGNORECASE,
)
"""First words that no docstring has: they leave open what it is about, or are verbs that are not in the imperative."""
SPEECH = re.compile(r"\b(tell|tells|told|telling|said|heard|hears)\b", re.IGNORECASE)
SPOKEN = re.compile(r"(^|_)(told|said|heard)($|_)", re.IGNORECASE)
PRONOUNS = frozenset((
    "about", "chosen", "each", "found", "held", "here", "kept", "known", "left", "one", "other", "own", "shown",
    "taken", "there", "wanted", "what",
))  # fmt: skip
"""Names of variables that are no nouns: a reader must look for the thing that they stand for."""
ROOMS = {
    "core/alerting": 0,
    "core/analysis/compare": 7,
    "core/analysis/convert": 0,
    "core/analysis/diagnosis": 40,
    "core/analysis/engines": 0,
    "core/analysis/performance": 0,
    "core/checks": 0,
    "core/control": 0,
    "core/hindsight": 0,
    "core/instrumentation": 0,
    "core/monitor": 0,
    "core/output": 0,
    "core/prechecks": 0,
    "core/rules": 0,
    "core/run_state": 0,
    "core/sentinel": 0,
    "core/storage": 7,
    "core/trackers": 0,
    "launch": 1,
    "pytorch": 45,
    "services/exporter": 0,
    "services/performance": 0,
    "services/remediation": 0,
    "services/server": 0,
    "services/watcher": 0,
    "services/web": 0,
}
"""Most variables with such a name in a room; fields, which have a docstring, are not counted."""


def sources(*places: str) -> Iterator[Path]:
    """Yield the modules in ``places``."""
    for place in places:
        path = ROOT / place
        yield from [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield each docstring with its line, those of fields and constants included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def definitions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield each name that a module defines with its line: classes, functions, arguments, variables, attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def variables(node: ast.AST, in_class: bool = False) -> Iterator[str]:
    """Yield each name to which code assigns, and each parameter, but for the fields of classes."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and not in_class:
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.ExceptHandler) and node.name:
        yield node.name
    for child in ast.iter_child_nodes(node):
        is_field = isinstance(node, ast.ClassDef) or (in_class and isinstance(node, ast.Assign | ast.AnnAssign))
        yield from variables(child, is_field)


def pronouns(source: str) -> int:
    """Return the number of variables of ``source`` that are named with a pronoun or a participle."""
    return sum(name in PRONOUNS for name in variables(parsed(source)))


def failures(source: str) -> list[tuple[int, str]]:
    """Lines and words of ``source`` that break a rule."""
    tree = parsed(source)
    found = [(line, name) for line, name in definitions(tree) if SPOKEN.search(name)]
    for line, text in docstrings(tree):
        first = OPENING.match(text)
        found += [(line, first[1].lower())] if first else []
        found += [(line, spoken[0]) for spoken in SPEECH.finditer(text)]
    return sorted(found)


def test_docstrings_and_names_keep_the_rules_of_words() -> None:
    """Docstrings begin with a noun or an imperative verb, and no data are told, said or heard."""
    found = {str(path.relative_to(ROOT)): failures(path.read_text(encoding="utf-8")) for path in sources("probe")}
    assert {path: failed for path, failed in found.items() if failed} == {}


def test_rooms_name_things_with_nouns() -> None:
    """No room has more variables that are named with a pronoun than the table permits."""
    numbers = Counter[str]()
    for room in ROOMS:
        numbers[room] = sum(pronouns(path.read_text(encoding="utf-8")) for path in sources(f"probe/{room}"))
    assert {room: number for room, number in numbers.items() if number > ROOMS[room]} == {}


def test_pronouns_are_counted_wherever_a_name_is_bound() -> None:
    """Assignments, loops, comprehensions, parameters and exceptions count; fields and attributes do not."""
    assert pronouns("found = 1\nfor each in found: pass") == 2
    assert pronouns("def f(own, *, held=0): return [other for other in own if (left := other)]") == 4
    assert pronouns("try: pass\nexcept ValueError as what: pass") == 1
    assert pronouns("class A:\n    known: int = 0\n    def f(self): self.kept = [each for each in self.kept]") == 1
    assert pronouns("row = records.found") == 0


def test_each_rule_of_words_finds_what_breaks_it() -> None:
    """A vague opening, a third person, a verb of speech and a name made of one are each found."""
    assert failures('def f():\n    """What is left."""') == [(2, "what")]
    assert failures('def f():\n    """Writes a file."""') == [(2, "writes")]
    assert failures('def f():\n    """Number that ranks told."""') == [(2, "told")]
    assert failures("class A:\n    def g(self, told): self._said = heard_of = told") == [
        (2, "_said"),
        (2, "heard_of"),
        (2, "told"),
    ]
    assert failures('"""Write a file."""\nretold = foretold = 1') == []
