"""Report in a real browser: a click shows the numbers of the files."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.core.analysis.report import layout
from probe.core.analysis.report.write import write_report
from tests.core.analysis.browsing import browser, click_cell, errors, open_page, requested, wait_until
from tests.core.analysis.report_data import varied, write_run, written_rows
from tests.required import require

pytestmark = pytest.mark.browser

require("duckdb")
require("plotly")

EVIL = "</script><script>window.evil = 1</script><img src=x onerror=window.evil=2>"
NAMES = ["fc1.weight", "<b>fc1</b>.bias", f"{EVIL}.weight", "fc2.weight", "fc2.bias"]
STEPS = range(0, 24, 2)


def value(step: int, rank: int, micro_step: int, row: int) -> float:
    """NaN from step 14 on in the first row of rank 1, Inf in the second, a zero in the third, else numbers."""
    if rank == 1 and step >= 14 and row < 2:
        return math.inf if row else math.nan
    return 0.0 if row == 2 and step == 4 else varied(step, rank, micro_step, row)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_run(tmp_path_factory.mktemp("run"), ranks=3, steps=STEPS, names=NAMES, value=value)


@pytest.fixture(scope="module")
def opened(driver: Any, directories: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The page of the run."""
    out = tmp_path_factory.mktemp("page") / "report.html"
    write_report(directories[0].parent, out)
    open_page(driver, out)
    return driver


def select(driver: Any, name: str, text: str) -> None:
    """Chooses the option of a control that begins with ``text``."""
    control = require("selenium.webdriver.support.select").Select(driver.find_element("id", name))
    n = next(n for n, option in enumerate(control.options) if option.text.startswith(text))
    control.select_by_index(n)


def shown(driver: Any, name: str) -> str:
    return str(driver.find_element("id", f"cell-{name}").text)


def show(driver: Any, signal: str, op: str) -> None:
    """Chooses what the heatmap is of, and waits for it."""
    select(driver, "signal", f"{signal}:")
    wait_until(driver, "document.querySelector('#cell').textContent.includes(`of ${arguments[0]}`)", signal)
    select(driver, "op", op)
    wait_until(driver, "document.querySelector('#cell').textContent.includes(`${arguments[0]} of`)", op)


def click(driver: Any, row: int, column: int, label: str, step: int) -> None:
    """Click a cell and wait until the page shows it."""
    click_cell(driver, "heatmap", row, column)
    wait_until(
        driver,
        "document.querySelector('#cell-row').textContent === arguments[0] && "
        "Number(document.querySelector('#cell-step')?.textContent) === arguments[1]",
        label,
        step,
    )


def expected_row(directories: list[Path], signal: str, name: str, step: int, op: str) -> list[dict[str, str]]:
    """The rows that a cell may show: those of the largest magnitude of a name at a step; NaN before all."""

    def size(row: dict[str, str]) -> float:
        return math.inf if math.isnan(float(row[op])) else min(abs(float(row[op])), 1e308)

    rows = [row for row in written_rows(directories, signal) if row["name"] == name and int(row["step"]) == step]
    return [row for row in rows if size(row) == max(map(size, rows))]


@pytest.mark.parametrize(
    ("signal", "op", "row", "name"),
    [
        ("grad_reduced", "min", 3, "fc2.weight"),
        ("actv", "norm", 2, f"{EVIL}.output"),
        ("grad_reduced", "max", 0, "fc1.weight"),
    ],
)
@pytest.mark.parametrize("column", [0, 2, 5, 11])
def test_a_clicked_cell_is_its_row_in_the_file(
    opened: Any, directories: list[Path], signal: str, op: str, row: int, name: str, column: int
) -> None:
    """Value digit by digit, step, rank, micro step, file and line are those of a row that Python's csv reads."""
    show(opened, signal, op)
    step = STEPS[column]
    click(opened, row, column, name, step)
    found = expected_row(directories, signal, name, step, op)
    assert shown(opened, "value") == found[0][op]
    directory, file = shown(opened, "file").split("/")
    micro = "cell-micro" if signal == "actv" else None
    written = [
        r
        for r in found
        if r["file"] == file
        and directories[int(r["directory"])].name == directory
        and (micro is None or r["micro_step"] == opened.find_element("id", micro).text)
    ]
    assert len(written) == 1
    assert shown(opened, "rank") == str(int(written[0]["directory"]))
    line = [written[0]["vpp_stage"], name, str(step)] + ([written[0]["micro_step"]] if micro else [])
    assert shown(opened, "line") == ",".join(line) + ","


@pytest.mark.parametrize(("row", "column", "text"), [(0, 7, "nan"), (1, 9, "inf"), (2, 2, "0")])
def test_what_has_no_logarithm_is_shown_as_what_it_is(opened: Any, row: int, column: int, text: str) -> None:
    """NaN, Inf and zero have colours of their own, unlike those of numbers, and are named in words."""
    show(opened, "grad_reduced", "max")
    click(opened, row, column, NAMES[row], STEPS[column])
    assert shown(opened, "value") == text
    z = opened.execute_script("return document.getElementById('heatmap').data[0].z")
    assert z[row][column] > 1 >= max(number for own in z for number in own if number not in {1.1, 1.2, 1.3})
    alike = [(r, c) for r in range(5) for c in range(12) if z[r][c] == z[row][column]]
    assert (
        alike
        == {
            "nan": [(0, c) for c in range(7, 12)],
            "inf": [(1, c) for c in range(7, 12)],
            "0": [(2, 2)],
        }[text]
    )


def test_a_cell_can_be_chosen_without_a_mouse(opened: Any, directories: list[Path]) -> None:
    """The controls under the heatmap do what a click does."""
    show(opened, "grad_reduced", "norm")
    select(opened, "row", "fc2.bias")
    opened.execute_script(
        "const step = document.getElementById('step'); step.value = 8; step.dispatchEvent(new Event('change'));"
    )
    wait_until(opened, "document.querySelector('#cell-step').textContent === '8'")
    assert shown(opened, "value") == expected_row(directories, "grad_reduced", "fc2.bias", 8, "norm")[0]["norm"]


def test_the_last_of_many_choices_wins(opened: Any, directories: list[Path]) -> None:
    """After several clicks the page shows the last cell only."""
    opened.execute_script(
        """const change = (id, value) => {
          const control = document.getElementById(id);
          control.value = value;
          control.dispatchEvent(new Event("change"));
        };
        for (const [signal, op, row] of [[0, 0, 3], [1, 1, 2], [0, 2, 1], [1, 2, 0], [0, 1, 2], [1, 0, 4]]) {
          change("signal", signal);
          change("op", op);
          change("row", row);
        }
        change("step", 6);"""
    )
    wait_until(
        opened,
        "document.querySelector('#cell-step').textContent === '6' && "
        "document.getElementById('curve-heading').textContent === 'min of grad_reduced: fc2.bias' && "
        "document.getElementById('ranks-heading').textContent === 'min of grad_reduced: fc2.bias'",
    )
    assert shown(opened, "value") == expected_row(directories, "grad_reduced", "fc2.bias", 6, "min")[0]["min"]
    z = opened.execute_script("return document.getElementById('heatmap').data[0].z")
    show(opened, "grad_reduced", "norm")
    show(opened, "grad_reduced", "min")
    assert opened.execute_script("return document.getElementById('heatmap').data[0].z") == z


def test_curves_of_ranks_are_their_rows(opened: Any, directories: list[Path]) -> None:
    """Side by side stands what each rank wrote, to four digits, with a mark where that is not finite."""
    show(opened, "grad_reduced", "max")
    click(opened, 0, 3, "fc1.weight", STEPS[3])
    wait_until(opened, "document.getElementById('ranks-heading').textContent === 'max of grad_reduced: fc1.weight'")
    traces = opened.execute_script("return document.getElementById('ranks-plot').data.map(t => [t.name, t.x, t.y])")
    curves = {name: (x, y) for name, x, y in traces}
    assert set(curves) == {"rank 0", "rank 1", "rank 2", "rank 1: NaN or Inf"}
    for rank in range(3):
        written = [
            float(row["max"])
            for row in sorted(written_rows([directories[rank]], "grad_reduced"), key=lambda row: int(row["step"]))
            if row["name"] == "fc1.weight"
        ]
        x, y = curves[f"rank {rank}"]
        assert x == list(STEPS)
        drawn = [math.nan if number is None else number for number in y]
        np.testing.assert_allclose(drawn, written, rtol=5e-4)
    assert curves["rank 1: NaN or Inf"][0] == list(range(14, 24, 2))


def test_gradients_over_depth_are_those_of_the_step(opened: Any, directories: list[Path]) -> None:
    """From the first layer to the last stands the norm of the chosen step; what is not finite is marked."""
    select(opened, "depth-signal", "grad_reduced:")
    opened.execute_script(
        "const step = document.getElementById('depth-step'); step.value = 8; step.dispatchEvent(new Event('input'));"
    )
    curves = wait_until(
        opened,
        "(drawn => drawn?.some(t => t.name === 'step 16') && drawn.map(t => [t.name, t.x, t.y]))"
        "(document.getElementById('depth').data)",
    )
    (y,) = (y for name, _, y in curves if name == "step 16")
    (bad,) = (x for name, x, _ in curves if name == "NaN or Inf")
    assert bad == [0, 1]
    norms = [expected_row(directories, "grad_reduced", name, 16, "norm")[0]["norm"] for name in NAMES]
    assert y == [None, None, *map(float, norms[2:])]


def test_names_are_shown_and_never_run(opened: Any) -> None:
    """A module may be called anything; the page shows it as it is."""
    assert opened.execute_script("return window.evil") is None
    options = opened.find_element("id", "row").text
    assert EVIL in options
    ticks = opened.execute_script("return document.getElementById('heatmap').textContent")
    assert "onerror=window.evil=2>" in ticks
    assert "<b>fc1</b>" in ticks


def test_a_row_of_the_table_of_findings_shows_its_cell(opened: Any) -> None:
    """From a finding it is one click to its numbers."""
    opened.execute_script("document.querySelector('#findings details').open = true")
    row = opened.find_element("css selector", "#findings-table tr[data-finding='1']")
    texts = [cell.text for cell in row.find_elements("tag name", "td")]
    row.click()
    wait_until(opened, "document.querySelector('#cell-row').textContent === arguments[0]", texts[4])
    assert [shown(opened, "step"), shown(opened, "rank"), shown(opened, "value")] == [texts[0], texts[2], texts[6]]


def test_the_page_complains_of_nothing_and_asks_nobody(opened: Any) -> None:
    """No error or warning, and no address but the file itself."""
    assert errors(opened) == []
    asked = requested(opened)
    assert asked
    assert all(url.startswith("file:") and url.endswith("report.html") for url in asked)
    names = opened.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert [name for name in names if not name.startswith(("data:", "blob:"))] == []


def test_a_column_of_many_steps_shows_the_extreme_and_where_it_was(
    driver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 90 steps in 9 columns none of the extremes is lost: the cell shows the very row."""
    monkeypatch.setattr(layout, "MOST_COLUMNS", 9)
    monkeypatch.setattr(layout, "FEWEST_COLUMNS", 1)

    def spike(step: int, rank: int, micro_step: int, row: int) -> float:
        return -12345.6 if (step, rank, row) == (47, 1, 1) else 1 + step / 1000

    directories = write_run(tmp_path, ranks=2, steps=range(90), names=["a.weight", "b.weight"], value=spike)
    write_report(tmp_path, tmp_path / "report.html")
    open_page(driver, tmp_path / "report.html")
    assert "Each column stands for 10 steps" in driver.find_element("id", "layers").text
    show(driver, "grad_reduced", "max")
    click(driver, 1, 4, "b.weight", 47)
    assert shown(driver, "value") == expected_row(directories, "grad_reduced", "b.weight", 47, "max")[0]["max"]
    assert [shown(driver, "rank"), shown(driver, "file")] == ["1", f"{directories[1].name}/grad_reduced_46-47.csv"]
