"""Promises of the matrix itself: a small toy, a whole contract, and a true list of differences."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from probe.core.backend import protocols as contract
from tests.matrix import numpy_framework
from tests.matrix.harness import FRAMEWORKS, Harness
from tests.matrix.known_differences import KNOWN_DIFFERENCES, without

ROOT = Path(__file__).resolve().parents[2]


def code_lines(source: str) -> set[int]:
    """Numbers of the lines that are neither blank nor comment nor docstring."""
    lines = {number for number, line in enumerate(source.splitlines(), 1) if line.strip() and line.strip()[0] != "#"}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return lines


def test_a_framework_takes_less_than_a_hundred_lines() -> None:
    """The toy framework and its adapter together have under a hundred lines of code."""
    source = Path(numpy_framework.__file__).read_text(encoding="utf-8")
    assert len(code_lines(source)) < 100


def test_lines_of_code_are_counted() -> None:
    """Blank lines, comments and docstrings are no code."""
    source = '"""Module.\n\nText.\n"""\n\n# comment\ndef f():\n    """Docstring."""\n    return 1  # counts\n'
    assert code_lines(source) == {7, 9}


def members(protocol: type) -> dict[str, inspect.Signature]:
    """Signatures of a protocol of the contract, without ``self``."""
    asked = {}
    for name, function in vars(protocol).items():
        if inspect.isfunction(function) and not name.startswith("_"):
            signature = inspect.signature(function)
            asked[name] = signature.replace(parameters=list(signature.parameters.values())[1:])
    return asked


@pytest.mark.parametrize("part", ["tensors", "hooks", "groups"])
def test_an_adapter_answers_every_question(framework: Harness, part: str) -> None:
    """Each function of the contract is there and can be called as core calls it."""
    adapter = getattr(framework.TrainerMon.framework, part)
    asked = members(getattr(contract, part.capitalize()))
    assert asked
    for name, signature in asked.items():
        if inspect.isbuiltin(function := getattr(adapter, name)):  # compiled, without a signature
            assert not signature.parameters
            function()
            continue
        answer = inspect.signature(function)
        keywords = {n: None for n, p in signature.parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}
        answer.bind(*[None] * (len(signature.parameters) - len(keywords)), **keywords)


def test_the_toy_answers_nothing_that_is_not_asked() -> None:
    """What it shows as the contract is the contract, and no more."""
    adapter = numpy_framework.TrainerMon.framework
    for part in ("tensors", "hooks", "groups"):
        assert set(vars(getattr(adapter, part))) == set(members(getattr(contract, part.capitalize())))


def test_what_a_framework_lacks_is_lacking(framework: Harness) -> None:
    """Nothing is left out that the harness could do, and everything else is there."""
    lacks = FRAMEWORKS[framework.NAME].lacks
    assert set(framework.STATE) == {"momentum", "sgd", "adam"} - lacks
    floats = {"float64", "float32", "float16", "bfloat16"}
    assert floats & set(framework.DTYPES) == floats - lacks
    assert bool(framework.IDIOMS) is ("idioms" not in lacks)
    assert lacks <= {"sgd", "adam", "bfloat16", "idioms", "running sums", "any name", "every step"}


def collected() -> list[str]:
    """The ids of the tests in the files of known differences, as pytest finds them in a process of its own."""
    files = sorted({f"tests/matrix/{test.partition('::')[0]}" for test, _ in KNOWN_DIFFERENCES})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-o", "addopts=", "-q", *files]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return [line.strip().removeprefix("tests/matrix/") for line in run.stdout.splitlines() if "::" in line]


@pytest.mark.slow
def test_every_known_difference_names_a_test() -> None:
    """An entry whose test is gone, or is not run on that framework, has to go too."""
    tests = collected()
    for (test, framework), reason in KNOWN_DIFFERENCES.items():
        assert reason.strip()
        assert framework in FRAMEWORKS
        assert test in {without(framework, each) for each in tests if f"[{framework}" in each}
