"""Expressions of the log parser: linear in time on any text, with RE2 and with Python's own engine alike."""

from __future__ import annotations

import importlib
import random
import re
import time
from typing import Any

import pytest

from probe.services.logs import anomalies, lines, metrics, normal, signs, structure, timestamps
from probe.services.logs.expressions import Expression, fast_engine, python_engine, re2_module
from tests.required import require
from tests.services.test_logs_anomalies import CLEAN, FOUND
from tests.services.test_logs_corpus import FILES, entries
from tests.services.test_logs_formats import NUMBERS, RANKS, TIMES

parse = importlib.import_module("re._parser" if hasattr(re, "_parser") else "sre_parse")
MODULES = (anomalies, signs, lines, metrics, normal, structure, timestamps)
EXPRESSIONS = {
    f"{module.__name__.rpartition('.')[2]}.{name}": value
    for module in MODULES
    for name, value in vars(module).items()
    if isinstance(value, Expression)
} | {
    f"sign {number} {sign.kind} {n}": each
    for number, sign in enumerate(signs.SIGNS)
    for n, each in enumerate((sign.phrases, sign.needs))
    if each
}
CORPUS = [
    line.encode()
    for line, *_ in (
        *NUMBERS,
        *RANKS,
        *TIMES,
        *FOUND,
        *((each,) for each in CLEAN),
        *((line,) for path in FILES for entry in entries(path) for line in entry["line"].split("\n")),
    )
]


def repetitions(parsed: Any) -> list[tuple[int, int]]:
    """Bound of each repetition in an expression, and how many of more than one turn it lies in."""
    found: list[tuple[int, int]] = []

    def walk(items: Any, depth: int) -> None:
        for operation, argument in items:
            if str(operation) in ("MAX_REPEAT", "MIN_REPEAT"):
                _, most, inner = argument
                found.append((int(most), depth))
                walk(inner, depth + (most > 1))
            elif str(operation) == "SUBPATTERN":
                walk(argument[3], depth)
            elif str(operation) == "BRANCH":
                for branch in argument[1]:
                    walk(branch, depth)
            elif "ASSERT" in str(operation):
                pytest.fail("RE2 has no look-around")

    walk(parsed, 0)
    return found


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_every_repetition_is_bounded(name: str) -> None:
    """So that Python's engine does a bounded amount of work at each position, whatever the text."""
    for most, depth in repetitions(parse.parse(EXPRESSIONS[name].pattern)):
        assert most <= 2048
        assert depth == 0 or most <= 32


def attacks(pattern: bytes) -> list[bytes]:
    """Pieces whose repetition makes an engine that backtracks work hard on ``pattern``."""
    words = re.findall(rb"[A-Za-z_/ ']{3,}", pattern)
    pieces = [b"a", b"1", b" ", b"a ", b"1.", b"a=", b'"', b"=1", b"[", b"1/", b"Epoch: 1 ", b"%|"]
    return [*pieces, *words[:4], *(word + b" 1" for word in words[:2])]


def seconds(engine: Any, text: bytes, searches: int = 2) -> float:
    """Least processor time of some searches for all matches."""
    best = float("inf")
    for _ in range(searches):
        begin = time.process_time()
        for _match in engine.finditer(text):
            pass
        best = min(best, time.process_time() - begin)
    return best


def test_time_grows_with_the_length_of_the_text() -> None:
    """With Python's engine: eight times the text takes at most about eight times as long; quadratic would be 64."""
    slow = {}
    for name, expression in EXPRESSIONS.items():
        engine = python_engine(expression.pattern)
        for piece in attacks(expression.pattern):
            for searches in (2, 30):  # more of them if something else may have taken the time
                short, long = (seconds(engine, (piece * size)[:size], searches) for size in (400, 3_200))
                if long <= 24 * max(short, 2e-5):
                    break
            else:
                slow[name, piece] = (short, long)
    assert slow == {}


def test_the_growth_of_a_quadratic_expression_is_noticed() -> None:
    """The expression for epoch and loss of the older parser, on a line with many epochs."""
    engine = re.compile(rb"Epoch: (\d+).*Loss: ([\d\.]+).*Accuracy: ([\d\.]+)")
    short, long = (seconds(engine, (b"Epoch: 1 " * size)[:size]) for size in (1_000, 16_000))
    assert long > 24 * short


def results(engine: Any, text: bytes) -> list[tuple[Any, ...]]:
    """Span and groups of every match."""
    return [(match.span(), tuple(match.groups())) for match in engine.finditer(text)]


def test_both_engines_find_the_same() -> None:
    """In all lines of the other tests, in a text of all of them, and in random bytes."""
    require("re2")
    assert re2_module() is not None
    generator = random.Random(7)
    texts = [*CORPUS, b"\n".join(CORPUS), *(generator.randbytes(200) for _ in range(20)), b""]
    for name, expression in EXPRESSIONS.items():
        python, fast = python_engine(expression.pattern), fast_engine(expression.pattern)
        assert python is not fast
        for text in texts:
            assert results(python, text) == results(fast, text), (name, text)


def test_without_re2_records_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long lines, which RE2 searches, are parsed as by Python's engine alone."""
    require("re2")
    from probe.services.logs import TrainingLogParser

    long = [line + b" " + b"x, " * 760 for line in CORPUS]
    with_re2 = [TrainingLogParser().record(line) for line in long]
    everything = [value for name, value in EXPRESSIONS.items()]
    monkeypatch.setattr("probe.services.logs.expressions.re2_module", lambda: None)
    fast_engine.cache_clear()
    for each in everything:
        monkeypatch.setattr(each, "_fast", None)
    without = [TrainingLogParser().record(line) for line in long]
    fast_engine.cache_clear()
    assert repr(with_re2) == repr(without)
