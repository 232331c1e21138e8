"""What frameworks and programs call of this package goes through :mod:`probe.core.door`: by reading the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import probe
from tests.sources import parsed

ROOT = Path(probe.__file__).parent
OUTSIDE = ("demo/", "locale/")
"""Folders of programs of their own."""
DOOR = "core/door.py"
MARKS = {"entrance", "passage"}
WRAPPERS = {"Hook", "StepHook", "TracedHook", "guard", "weakly", "surfacing", "some"}
"""Functions whose result frameworks may call: hooks of the door, and what makes one. ``guard`` is that of a run."""
HOOKS: dict[tuple[str, str], str] = {
    ("mindspore/cell_hooks.py", "_nothing"): "replaced at once by a cell that surfaces failures",
    ("mindspore/cell_hooks.py", "After(listen).__call__"): "surfaces failures of a guarded function",
    ("mindspore/gradients.py", "OfGradient(weakly(hook))"): "likewise, and is compiled into nothing",
    ("pytorch/compiled.py", "receive"): "traced into the graph, where it is an operator",
    ("pytorch/callbacks/accelerate.py", "began"): "a Hook",
}
"""Hooks that are placed otherwise, with the reason."""
REPLACEMENTS: dict[str, str] = {
    "launch/step_notes.py": "a class's method that is marked, or an Around",
    "launch/watch.py": "os._exit, which no framework calls",
    "mindspore/collectives.py": "MindSpore compiles no Python function that it calls; listeners are guarded",
    "mindspore/data_sets.py": "likewise",
    "mindspore/finding.py": "likewise, before training",
    "mindspore/gradients.py": "likewise",
    "mindspore/optimizers/nn_cell.py": "likewise",
    "mindspore/training_loop.py": "likewise",
    "pytorch/collectives/functional.py": "functions that are marked where they are made",
    "pytorch/collectives/process_group.py": "likewise",
    "pytorch/finding.py": "before training",
    "pytorch/loss_scale.py": "functions that are marked where they are made",
    "pytorch/prechecks/loaders.py": "likewise",
    "pytorch/prechecks/losses.py": "likewise",
    "pytorch/training_loop.py": "likewise",
}
"""Files that replace functions by others than an ``Around`` or a function marked beside the call, with the reason."""
GUARDS: set[str] = {
    "core/backend/collective_listeners.py: attempt",
    "core/worker.py: _attempt",
}
"""Functions that guard another one as :func:`probe.core.door.attempt` does; to be removed, none to be added."""
ANSWERS = {
    "core/analysis/convert/csv2tb.py: convert",
    "core/analysis/engines/workers.py: _tried",
    "core/analysis/engines/ray.py: _work",
    "core/rules/evaluate.py: _findings_of",
}
"""Functions that return the error as their answer."""


def modules() -> Iterator[tuple[str, ast.Module, list[str]]]:
    """Every module of the package: its path, its tree and its lines."""
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(OUTSIDE):
            text = path.read_text(encoding="utf-8")
            yield name, parsed(text), text.splitlines()


CODE: list[tuple[str, ast.Module, list[str]]] = []


@pytest.fixture(scope="module", autouse=True)
def _code() -> Iterator[None]:
    """The modules while the tests here run."""
    CODE.extend(modules())
    yield
    CODE.clear()


def called(node: ast.AST) -> str:
    """The last name of what a call calls."""
    function = node.func if isinstance(node, ast.Call) else node
    return getattr(function, "attr", getattr(function, "id", ""))


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def test_hooks_are_of_the_door() -> None:
    """Whatever is registered as a hook is one of the door's, or made by a guard; exceptions are listed."""
    found = {
        (name, ast.unparse(call.args[0]))
        for name, tree, _ in CODE
        for call in calls(tree)
        if re.fullmatch(r"register_\w*hook", called(call)) and isinstance(call.func, ast.Attribute) and call.args
        if called(call.args[0]) not in WRAPPERS or not isinstance(call.args[0], ast.Call)
    }
    assert found - HOOKS.keys() == set(), "wrap these hooks by Hook, StepHook or a run's guard"
    assert HOOKS.keys() - found == set(), "take these out of HOOKS"


def test_replacements_are_of_the_door() -> None:
    """Whatever replaces a function of others is an ``Around`` or marked as an entrance or passage."""
    unmarked = set()
    for name, tree, _ in CODE:
        if not any(isinstance(node, ast.ImportFrom) and node.module == "probe.core.door" for node in ast.walk(tree)):
            continue
        functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        kinds = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        for call in calls(tree):
            if called(call) != "replace" or not isinstance(call.func, ast.Name) or len(call.args) != 3:
                continue
            replacement = call.args[2]
            marked = functions.get(called(replacement))
            is_around = called(replacement) == "Around" or (
                (kind := kinds.get(called(replacement))) is not None and "Around" in map(called, kind.bases)
            )
            is_marked = marked is not None and MARKS & set(map(called, marked.decorator_list))
            assigned = [
                node.value
                for node in ast.walk(tree)
                if isinstance(node, ast.Assign) and called(node.targets[0]) == called(replacement)
            ]
            if not (is_around or is_marked or any(called(value) == "Around" for value in assigned)):
                unmarked.add(name)
    assert unmarked - REPLACEMENTS.keys() == set()
    assert REPLACEMENTS.keys() - unmarked == set(), "take these out of REPLACEMENTS"


def broad(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return handler.type is None or any(called(kind) in ("Exception", "BaseException") for kind in kinds if kind)


def says_why(handler: ast.ExceptHandler, lines: list[str]) -> bool:
    """Whether a comment beside or in the handler, besides a linter's code, gives the reason."""
    text = lines[handler.lineno - 1 : handler.end_lineno or handler.lineno]
    comments = (re.sub(r"noqa(: [A-Z0-9, ]+)?", "", line.partition("#")[2]) for line in text)
    return any(len(comment.strip(" -#")) > 10 for comment in comments)


REPORTS = re.compile(
    r"note|lost|count|attempt|succeeds|warn|warning|error|exception|info|debug|complain|fail|failed|report|problem|add|append|print|write|put|log"
)


def test_no_failure_is_swallowed() -> None:
    """A handler of every exception counts, logs, raises or returns it, or a comment says why not."""
    silent = []
    for name, tree, lines in CODE:
        for handler in (node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)):
            if not broad(handler) or says_why(handler, lines):
                continue
            inside = [node for statement in handler.body for node in ast.walk(statement)]
            uses = handler.name is not None and any(getattr(node, "id", None) == handler.name for node in inside)
            raises = any(isinstance(node, ast.Raise) for node in inside)
            reports = any(isinstance(node, ast.Call) and REPORTS.search(called(node)) for node in inside)
            if not (uses or raises or reports):
                silent.append(f"{name}:{handler.lineno}")
    assert silent == []


def test_there_is_one_guard() -> None:
    """Only the door has a function that calls another one and counts what it raises."""
    found = set()
    for name, tree, _ in CODE:
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            arguments = {argument.arg for argument in (*function.args.args, *function.args.posonlyargs)}
            for node in function.body:
                if not isinstance(node, ast.Try) or not any(map(broad, node.handlers)):
                    continue
                direct = {called(call) for call in calls(ast.Module(node.body, [])) if isinstance(call.func, ast.Name)}
                if arguments & direct:
                    found.add(f"{name}: {function.name}")
    assert f"{DOOR}: attempt" in found
    outside = {place for place in found if not place.startswith(DOOR)} - ANSWERS
    assert outside - GUARDS == set(), "use attempt() of probe.core.door"
    assert GUARDS - outside == set(), "take these out of GUARDS"


@pytest.mark.parametrize(
    ("code", "silent"),
    [
        ("try:\n    f()\nexcept Exception:\n    pass\n", True),
        ("try:\n    f()\nexcept Exception:  # noqa: BLE001\n    pass\n", True),
        ("try:\n    f()\nexcept Exception:  # noqa: BLE001 - the file may be gone\n    pass\n", False),
        ("try:\n    f()\nexcept Exception as error:\n    faults.note('f', error)\n", False),
        ("try:\n    f()\nexcept OSError:\n    pass\n", False),
    ],
)
def test_what_counts_as_swallowed(code: str, silent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule on handlers finds what it is to find."""
    monkeypatch.setitem(globals(), "CODE", [("example.py", ast.parse(code), code.splitlines())])
    if silent:
        with pytest.raises(AssertionError):
            test_no_failure_is_swallowed()
    else:
        test_no_failure_is_swallowed()
