"""The pages of the reference that come from the code are what the code says today."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from probe.cli import VERBS
from probe.core.analysis.merge import LAST
from probe.core.checks import CHECKS
from probe.core.monitor.trainer_mon import Monitor
from probe.core.naming import SIGNALS
from probe.core.prechecks import PRECHECKS
from probe.core.rules import RULES
from probe.core.run_state.rules import RUN_RULES
from probe.core.storage.anomaly_json import TYPED, Entry
from probe.core.storage.layout import PP_STAGE

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"
FILES = (REFERENCE / "files.md").read_text("utf-8")
PAGES = runpy.run_path(str(REFERENCE / "generate.py"))["PAGES"]


def section(title: str) -> str:
    """The text under a heading of the page about files."""
    (text,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", FILES, re.DOTALL | re.MULTILINE)
    return text


def first_cells(title: str) -> set[str]:
    """The words in backticks in the first column of a section's tables."""
    lines = re.findall(r"^\| (`.*?) \|", section(title), re.MULTILINE)
    return {word for line in lines for word in re.findall(r"`(\w+)`", line)}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_says(name: str) -> None:
    """Made by `make reference`, and not edited by hand since."""
    assert (REFERENCE / name).read_text("utf-8") == PAGES[name](), "run `make reference`"


def test_every_command_and_every_public_name_has_a_section() -> None:
    """So that a page is not merely the same as a generator that leaves things out."""
    headings = re.findall(r"^#+ (.*)$", PAGES["commands.md"](), re.MULTILINE)
    assert {f"probe {verb}" for verb in VERBS} | {"probe config check", "probe control set"} <= set(headings)
    inner = {"automatic", "close", "framework", "settings", "way"}
    members = {name for name in dir(Monitor) if not name.startswith("_")} - inner
    described = set(re.findall(r"^#### TrainerMon\.(\w+)$", PAGES["python.md"](), re.MULTILINE))
    assert members == described


@pytest.mark.parametrize("name", [*CHECKS, *PRECHECKS, *RULES, *RUN_RULES])
def test_every_rule_and_check_has_its_five_lines(name: str) -> None:
    """What it reports, why, where the fault was reported, what it sees, and how it is switched off."""
    page = PAGES["../guides/what_is_found.md"]()
    for section in re.findall(rf"^#### {re.escape(name)}\n\n(.*?)(?=^#|\Z)", page, re.DOTALL | re.MULTILINE):
        lines = [re.match(r"(.+?): (\S.*)", text, re.DOTALL) for text in section.split("\n- ")]
        assert [line and line[1].lstrip("- ") for line in lines] == ["What", "Why", "Source", "Sees", "Switch off"]
        assert re.search(
            r"^- Why: [A-Z].*?\.$.*^- Source: <https://\S+>$.*^- Sees: \w", section, re.DOTALL | re.MULTILINE
        )
    assert f"#### {name}\n" in page


def test_every_fault_of_the_benchmark_is_listed() -> None:
    """With the kinds that it is found as, read from its script."""
    page, scripts = PAGES["../guides/what_is_found.md"](), ROOT / "benchmarks" / "faults"
    names = {path.stem for path in scripts.glob("*.py") if "\nCASE = " in path.read_text("utf-8")}
    assert set(re.findall(r"^- `(\w+)`: [A-Z]", page, re.MULTILINE)) == names


def test_every_signal_is_described() -> None:
    """With its name in tags; the state of optimizers has names of its own."""
    rows = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", section("Signals"), re.MULTILINE))
    assert rows == {name: signal.task for name, signal in SIGNALS.items()}


def test_every_field_of_a_finding_is_described() -> None:
    """Those that other readers know, and the typed ones."""
    documented = set(Entry.__dataclass_fields__) - {"typed"}
    assert first_cells("anomaly.json") == documented | set(TYPED)


def test_the_columns_of_merged_files_are_described() -> None:
    """Those behind the ops, as the code that writes them has them."""
    named = set(re.findall(r"`(\w+)`", section("Merged files")))
    assert {*LAST, PP_STAGE} <= named
