"""Seconds that tests take, by file and one by one: ``python tests/times.py [FILE]``, of the last ``make test``."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

LONGEST = 30
"""Lines of each of the two lists."""
DEFAULT = Path(__file__).resolve().parents[1] / ".venv" / "times.xml"


def seconds_of_tests(file: Path) -> Iterator[tuple[str, str, float]]:
    """Yield the module, the name and the seconds of each test in a report in JUnit's format."""
    for case in ElementTree.parse(file).iter("testcase"):
        yield case.get("classname", ""), case.get("name", ""), float(case.get("time", 0))


def lists(file: Path) -> Iterator[str]:
    """Yield the lines of both lists, the longest first."""
    tests = [*seconds_of_tests(file)]
    modules = Counter[str]()
    for module, _, seconds in tests:
        modules[module] += seconds  # type: ignore[assignment]
    yield f"{sum(modules.values()):.0f} s in {len(tests)} tests of {len(modules)} files"
    yield from (f"{seconds:8.1f}  {module}" for module, seconds in modules.most_common(LONGEST))
    slowest = sorted(tests, key=lambda test: -test[2])[:LONGEST]
    yield from (f"{seconds:8.1f}  {module}::{name}" for module, name, seconds in slowest)


if __name__ == "__main__":
    print("\n".join(lists(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT)))
