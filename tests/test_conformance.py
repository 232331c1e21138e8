"""docs/reference/conformance.md speaks of every key that there is and of no other; it and the fault list point at tests
that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from probe.cli.config import entries
from probe.core.monitor_v2.configuration import MONITOR_V2

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "conformance.md"
TEXT = PAGE.read_text(encoding="utf-8")
FAULTS = (ROOT / "docs" / "explanation" / "faults.md").read_text(encoding="utf-8")
OF_RULES = {entry.key for entry in entries() if entry.rule}
KEYS = [entry.key for entry in entries() if not entry.rule]


def section(title: str) -> list[list[str]]:
    """The items of the list under a heading: what it is about, what is here, and what shows it."""
    (text,) = re.findall(rf"^## {title}\n(.*?)(?=^###? |\Z)", TEXT, re.DOTALL | re.MULTILINE)
    items = re.split(r"^- ", text, flags=re.MULTILINE)[1:]
    return [[" ".join(part.split()) for part in re.split(r"\n  - (?:here|shown by): ", item)] for item in items]


def test_every_key_is_there_once() -> None:
    """Those of the documentation a line each, the others by subject; arguments of rules have a guide of their own."""
    documented = [line[0].strip("`") for line in section("Keys of that documentation")]
    beyond = re.findall(r"`([\w.]+)`", " ".join(line[0] for line in section("Keys beyond it")))
    assert len(documented) > 40
    assert sorted(documented + beyond) == sorted(KEYS)
    assert {key.rpartition(".")[0] for key in OF_RULES} == {"alert.rules.args", "alert.channels.args", "run.rules.args"}


@pytest.mark.parametrize(
    ("title", "page", "number"),
    [
        ("MindSpore Transformers' monitor", "004", 55),
        ("InternEvo's monitor", "000", 34),
        ("The stack around training", "001", 121),
    ],
)
def test_every_requirement_of_another_monitor_has_a_line(title: str, page: str, number: int) -> None:
    """In their order, each with the test that shows it."""
    lines = section(title)
    assert [line[0].split()[0] for line in lines] == [f"{page}-{each}" for each in range(1, number + 1)]
    assert [
        line[0] for line in lines if len(line) != 3 or not re.search(r"`[\w/]*test_\w+\.py::test_\w+`", line[2])
    ] == []


def test_every_call_and_key_of_monitor_v2_has_a_line() -> None:
    """Each with the test that shows it."""
    lines = section("msprobe's Monitor V2")
    named = " ".join(line[0] for line in lines)
    keys = [key.path for key in MONITOR_V2.keys if key.path.count(".") < 2 and key.name not in ("layout", "monitors")]
    assert [key for key in keys if f"`{key}`" not in named] == []
    assert [line[0] for line in lines if len(line) != 3 or not re.search(r"`test_\w+\.py", line[2])] == []


POINTERS = sorted(set(re.findall(r"`((?:[\w/]+/)?test_\w+\.py)(?:::(test_\w+))?(?:\[\w+\])?`", TEXT + FAULTS)))


def test_every_line_points_at_a_test() -> None:
    """No key and no part of the interface is there on its word alone."""
    lines = section("Keys of that documentation") + section("Interface, files and commands")
    assert [line[0] for line in lines if not re.search(r"`[\w/]*test_\w+\.py", line[2])] == []


@pytest.mark.parametrize(("file", "function"), POINTERS, ids=["::".join(pointer) for pointer in POINTERS])
def test_what_is_pointed_at_exists(file: str, function: str) -> None:
    """The file, and the test in it."""
    found = [path for path in (ROOT / "tests").rglob(Path(file).name) if str(path).endswith(f"/{file}")]
    assert found
    assert not function or any(f"def {function}(" in path.read_text(encoding="utf-8") for path in found)


def test_links_lead_somewhere() -> None:
    """Every page and heading that is linked to is there."""
    for page, heading in re.findall(r"\]\(([\w./-]*)(?:#([\w-]+))?\)", TEXT):
        text = (PAGE.parent / page).read_text(encoding="utf-8") if page else TEXT
        headings = [
            re.sub(r"[^\w -]", "", line.lstrip("# ")).lower().replace(" ", "-")
            for line in text.splitlines()
            if line.startswith("#")
        ]
        assert not heading or heading in headings, f"{page}#{heading}"
