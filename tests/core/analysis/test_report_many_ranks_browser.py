"""Report of 2,000 ranks in a real browser: from a finding, a line or a table to the rank."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from probe.core.analysis.report.write import write_report
from tests.core.analysis.browsing import browser, click_cell, errors, open_page, requested, wait_until
from tests.core.analysis.many_ranks_data import NAMES, replicas, usual, write_many_ranks
from tests.required import require

pytestmark = pytest.mark.browser

require("duckdb")
require("plotly")

RANKS, STEPS = 2000, 4
BROKEN, LARGE, SLOW = 1234, 777, 42


def planted(rank: int, step: int, row: int) -> float:
    """NaN from step 2 on in the first row of one rank, one number too large on another."""
    if (rank, row) == (BROKEN, 0) and step >= 2:
        return math.nan
    return usual(rank, step, row) * (37 if (rank, step, row) == (LARGE, 3, 2) else 1)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The page of the run."""
    root = tmp_path_factory.mktemp("run")
    write_many_ranks(root, RANKS, STEPS, planted, lambda rank, _: 1.5 if rank == SLOW else 1.0)
    out = tmp_path_factory.mktemp("page") / "report.html"
    written = write_report(root, out)
    assert written.size < 15_000_000
    with browser(tmp_path_factory.mktemp("profile")) as driver:
        open_page(driver, out)
        yield driver


def order_by(driver: Any, title: str) -> None:
    """Choose an order, and wait until the lines below are in it."""
    driver.execute_script(
        """const control = document.getElementById("groups-order");
        control.selectedIndex = [...control.options].findIndex((option) => option.text === arguments[0]);
        control.dispatchEvent(new Event("change"));""",
        title,
    )
    wait_until(driver, "document.getElementById('fine-heading').textContent.includes(`by ${arguments[0]}`)", title)


def choose_row(driver: Any, label: str) -> None:
    """Choose a row of the signal, and wait until its ranks are shown."""
    driver.execute_script(
        """const control = document.getElementById("row");
        control.selectedIndex = [...control.options].findIndex((option) => option.text === arguments[0]);
        control.dispatchEvent(new Event("change"));""",
        label,
    )
    wait_until(driver, "document.getElementById('fine-heading').textContent.includes(arguments[0])", label)


def fact(driver: Any, name: str) -> str:
    return str(driver.find_element("id", f"fine-{name}").text)


def ranks_shown(driver: Any, ranks: list[int]) -> bool:
    """Wait until the second heatmap has these ranks."""
    wait_until(
        driver,
        "document.getElementById('fine-plot').data[0].text.map(row => row[0].split(',')[0]).join() === arguments[0]",
        ",".join(f"rank {rank}" for rank in ranks),
    )
    return True


def test_the_first_finding_leads_to_its_rank(opened: Any) -> None:
    """Of 2,000 ranks that one is shown, with its host and its number."""
    assert fact(opened, "rank") == str(BROKEN)
    assert fact(opened, "host") == f"<b>node{BROKEN // 8}</b>"
    assert fact(opened, "pipeline-stage") == "1"
    assert fact(opened, "step") == "2"
    assert fact(opened, "value") == "nan"
    groups = opened.execute_script("return document.getElementById('groups-plot').data[0].z")
    assert len(groups) == 63  # of 32 ranks each
    assert [n for n, row in enumerate(groups) if row[2] == 1.3] == [BROKEN // 32]


def test_a_click_on_a_line_shows_its_ranks(opened: Any) -> None:
    """The second level is unpacked for the lines that are asked for; a click there shows the rank."""
    order_by(opened, "rank")
    choose_row(opened, f"pp0:{NAMES[0]}")
    click_cell(opened, "groups-plot", 24, 1)
    ranks_shown(opened, list(range(768, 800)))
    click_cell(opened, "fine-plot", LARGE - 768, 3)
    wait_until(opened, "document.getElementById('fine-rank').textContent === arguments[0]", str(LARGE))
    assert fact(opened, "value") == f"{usual(LARGE, 3, 0):.2g}"


def test_a_part_that_is_zoomed_into_is_shown_below(opened: Any) -> None:
    """Dragging over lines of the first level shows the ranks of these."""
    order_by(opened, "rank")
    opened.execute_script("Plotly.relayout('groups-plot', {'yaxis.range[0]': 4.6, 'yaxis.range[1]': 2.4})")
    assert ranks_shown(opened, list(range(96, 160)))


def test_ranks_stand_in_the_order_of_their_groups(opened: Any) -> None:
    """Replicas are neighbours, and the rank that was chosen stays in sight."""
    opened.execute_script(
        "const rank = document.getElementById('groups-rank'); rank.value = 8; rank.dispatchEvent(new Event('change'));"
    )
    order_by(opened, "group")
    assert ranks_shown(opened, replicas(0, RANKS)[:32])
    assert fact(opened, "rank") == "8"
    assert fact(opened, "group") == "replicas of rank 0"


def test_a_row_of_the_farthest_ranks_leads_to_the_rank(opened: Any) -> None:
    """To the cell of its number, for signals; to the rank, for the seconds of its steps."""
    order_by(opened, "rank")
    rows = opened.find_elements("css selector", "#far-table tr[data-far]")
    cells = [[cell.text for cell in row.find_elements("tag name", "td")] for row in rows]
    assert [row[0] for row in cells] == [str(BROKEN), str(LARGE)]
    assert cells[1][1:] == ["37", f"{usual(LARGE, 3, 2) * 37:.6g}", f"{usual(LARGE, 3, 2):.6g}", "3", NAMES[2]]
    rows[1].click()
    wait_until(opened, "document.getElementById('fine-rank').textContent === arguments[0]", str(LARGE))
    assert opened.find_element("id", "cell-row").text.endswith(NAMES[2])
    assert fact(opened, "value") == f"{usual(LARGE, 3, 2) * 37:.2g}"
    opened.execute_script(
        """const kind = document.getElementById("far-kind");
        kind.selectedIndex = kind.options.length - 1;
        kind.dispatchEvent(new Event("change"));"""
    )
    row = opened.find_element("css selector", "#far-table tr[data-far='0']")
    assert [cell.text for cell in row.find_elements("tag name", "td")][:4] == [str(SLOW), "1.5", "1.5", "1"]
    row.click()
    wait_until(opened, "document.getElementById('fine-rank').textContent === arguments[0]", str(SLOW))


def test_nothing_of_a_file_is_markup_and_nobody_is_asked(opened: Any) -> None:
    """Names of hosts are text; the page logs no error, and asks for no address but its own."""
    order_by(opened, "host")
    assert opened.execute_script("return document.querySelectorAll('#by-rank b, #farthest b').length") == 0
    assert "<b>node0</b>" in opened.execute_script("return document.getElementById('groups-plot').textContent")
    assert errors(opened) == []
    assert all(url.startswith("file:") and url.endswith("report.html") for url in requested(opened))
