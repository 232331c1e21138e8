"""Performance on the page: its sentences and tables, the curve, and nothing of it without numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from probe.core.analysis.report.write import write_report
from probe.core.naming import STEP_SECONDS
from tests.core.analysis.performance_data import write_calls, write_rank
from tests.core.analysis.report_data import write_run
from tests.core.analysis.test_report import PageFile
from tests.required import require

require("duckdb")

EVIL = "</script><img src=x>"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> PageFile:
    """The report of a run with a drop, a phase and collectives."""
    root = tmp_path_factory.mktemp("run")

    def numbers(step: int) -> dict[str, float]:
        seconds = 1.0 if 600 <= step < 800 else 0.25
        return {STEP_SECONDS: seconds, "throughput": 8 / seconds, f"phase/{EVIL}_seconds": 0.125}

    directory = write_rank(root, 0, range(1200), numbers)
    write_calls(directory, [(step, f"all_reduce.ranks0-1.{EVIL}.py[9].post", 1, 4096, 0.125) for step in (3, 700)])
    write_report(root, root / "page.html")
    return PageFile(root / "page.html")


def test_the_section_has_drops_phases_and_call_sites(page: PageFile) -> None:
    """As text, whatever the names are."""
    found = page.answer("performance")
    drop = "Drop: steps 600 to 799, 4.00 times as slow (8 instead of 32 samples a second and rank)"
    assert drop in found["lines"]
    assert any("GPU utilization is unknown" in line for line in found["lines"])
    tables = {table["title"]: table["rows"] for table in found["tables"]}
    assert EVIL in [row[0] for row in tables["Time by phase"]]
    (call,) = tables["Communication by call site (2 sampled steps)"]
    assert call[:2] == ["all_reduce", f"{EVIL}.py[9]"]
    assert "img" not in page.tags


def test_the_curve_has_medians_of_the_steps(page: PageFile) -> None:
    """Of 1,200 steps at most 500 points; the drop and the healthy throughput are marked."""
    curve = page.answer("performance")
    assert len(curve["steps"]) == len(curve["speeds"]) <= 500
    level = {8.0 if 600 <= step < 797 else 32.0 if step not in range(597, 800) else 0 for step in curve["steps"]}
    assert set(curve["speeds"]) == level - {0}
    assert curve["healthy"] == 32.0
    assert curve["drops"] == [[600, 799, 4.0]]


def test_without_seconds_of_steps_there_is_no_section(tmp_path: Path) -> None:
    """A run of tensors alone, and one whose program logs a loss only."""
    write_run(tmp_path / "tensors")
    write_rank(tmp_path / "loss", 0, range(5), lambda step: {"loss": 1.0})
    for root in (tmp_path / "tensors", tmp_path / "loss"):
        written = write_report(root, root / "page.html")
        found = PageFile(root / "page.html")
        assert (found.answer()["performance"], found.answer("performance")) == (False, None)
        assert not written.problems.skipped
