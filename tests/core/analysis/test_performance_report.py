"""Section "Performance" of the report: its text, its curve in a browser, and nothing of it without numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from probe.core.analysis.report.write import write_report
from probe.core.naming import STEP_SECONDS
from tests.core.analysis.browsing import browser, errors, open_page, wait_until
from tests.core.analysis.performance_data import write_calls, write_rank
from tests.core.analysis.report_data import write_run
from tests.core.analysis.test_report import Text
from tests.required import require

require("duckdb")
require("plotly")

EVIL = "</script><img src=x>"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run with a drop, a phase and collectives."""
    root = tmp_path_factory.mktemp("run")

    def numbers(step: int) -> dict[str, float]:
        seconds = 1.0 if 600 <= step < 800 else 0.25
        return {STEP_SECONDS: seconds, "throughput": 8 / seconds, f"phase/{EVIL}_seconds": 0.125}

    directory = write_rank(root, 0, range(1200), numbers)
    write_calls(directory, [(step, f"all_reduce.ranks0-1.{EVIL}.py[9].post", 1, 4096, 0.125) for step in (3, 700)])
    write_report(root, root / "page.html")
    return root / "page.html"


def data(path: Path) -> Any:
    found = re.search(r'id="data-performance">(.*?)</script>', path.read_text(encoding="utf-8"))
    return json.loads(found[1]) if found else None


def test_the_section_has_drops_phases_and_call_sites(page: Path) -> None:
    """As text, whatever the names are."""
    text = Text(page)
    shown = " ".join(text.text.split())
    assert "Drop in steps 600 to 799: 4.00 times as slow as in the first healthy stretch." in shown
    for cell in (EVIL, "Time by phase", "Communication by call site", "all_reduce", f"{EVIL}.py[9]", "3.277e+04"):
        assert cell in shown, cell
    assert "img" not in text.tags
    assert "unknown: there is no GPU utilization" in shown


def test_the_curve_has_medians_of_the_steps(page: Path) -> None:
    """Of 1,200 steps at most 500 points; the drop and the healthy throughput are marked."""
    curve = data(page)
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
        text = Text(root / "page.html").text
        assert "Performance" not in text
        assert data(root / "page.html") is None
        assert not written.problems.skipped


@pytest.mark.browser
def test_a_browser_draws_the_drop(page: Path, tmp_path: Path) -> None:
    """A curve, a span over the drop and a line at the healthy throughput; no error."""
    with browser(tmp_path / "profile") as driver:
        open_page(driver, page)
        wait_until(driver, "document.querySelectorAll('#throughput .scatterlayer .trace').length === 1")
        shapes = driver.execute_script("return document.getElementById('throughput').layout.shapes")
        assert [(shape["type"], shape.get("x0"), shape.get("x1")) for shape in shapes] == [
            ("rect", 600, 799),
            ("line", 0, 1),
        ]
        assert errors(driver) == []
