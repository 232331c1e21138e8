"""The page of a comparison in a real browser."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from probe.core.analysis.compare.compare import compare
from probe.core.analysis.compare.page import INFINITE, page
from tests.core.analysis.browsing import browser, errors, open_page, requested, wait_until
from tests.core.analysis.compare_data import Array, Where, write_run
from tests.required import require

pytestmark = pytest.mark.browser

require("duckdb")
require("plotly")

NAN = Where("grad_reduced", "layers.0.fc2.weight", 3, 0, 0)
LARGER = Where("grad_reduced", "head.bias", 5, 0, 0)
EVIL = "<img src=x onerror=window.evil=1></script><b>"

CELLS = "const { x, y, z } = document.getElementById('layers-plot').data[0]; return { x, y, z };"
CHOOSE = """
const chooser = document.getElementById("layers-signal");
chooser.value = arguments[0];
chooser.dispatchEvent(new Event("change"));
"""


def change(at: Where, tensor: Array) -> Array:
    return tensor * {NAN: math.nan, LARGER: 1.25}.get(at, 1.0)


def test_cells_show_what_was_found(tmp_path: Path) -> None:
    """The signal of the first difference is drawn, its differences as cells; nothing is fetched; names are text."""
    rename = {"layers.1": EVIL}
    found = compare(write_run(tmp_path / "a", rename=rename), write_run(tmp_path / "b", change, rename=rename))
    path = tmp_path / "page.html"
    path.write_text(page(found), encoding="utf-8")
    with browser(tmp_path / "profile") as driver:
        open_page(driver, path)
        assert driver.execute_script("return document.getElementById('layers-signal').value") == "grad_reduced"
        cells = driver.execute_script(
            "const {x, y, z} = document.getElementById('layers-plot').data[0]; return {x, y, z}"
        )
        lines = zip(cells["y"], cells["z"], strict=True)
        place = {(name, step): power for name, line in lines for step, power in zip(cells["x"], line, strict=True)}
        assert place[NAN.name, NAN.step] == INFINITE
        assert place[LARGER.name, LARGER.step] == pytest.approx(math.log10(0.2), abs=0.01)
        assert {power for at, power in place.items() if at not in ((NAN.name, 3), (LARGER.name, 5))} == {-8}
        assert wait_until(driver, "document.querySelectorAll('#growth-plot .scatterlayer .trace').length === 5")
        driver.execute_script(CHOOSE, "actv")
        assert wait_until(driver, "document.getElementById('layers-plot').data[0].y.includes('head.output')")
        assert EVIL in driver.execute_script("return document.getElementById('layers-plot').textContent")
        assert not driver.execute_script("return window.evil")
        assert errors(driver) == []
        assert requested(driver) == [path.as_uri()]
