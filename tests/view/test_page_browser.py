"""Page of ``probe view`` in a real browser, over runs that sinks write: numbers on the screen are the files'."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import probe
from tests.core.analysis.browsing import DRAWN, SCAN, browser, errors, wait_until
from tests.required import require
from tests.view.view_data import WrittenRank
from tests.view.view_process import ViewServer, viewing

pytestmark = pytest.mark.browser

EVIL = "</script><script>window.evil = 1</script><img src=x onerror=window.evil=2>"
ROWS = ["fc1.weight", "<b>fc1</b>.bias", f"{EVIL}.weight", "fc2.weight"]
STEPS, RANKS, BAD = 40, 3, 20
"""Steps and ranks of both runs at first; step of the first NaN."""
PAGE = Path(probe.__file__).parent / "view" / "page"
CHINESE = json.loads((PAGE / "messages.zh.json").read_text(encoding="utf-8"))
CELL = "signal=grad_reduced&op=max"


def value(run: int, step: int, rank: int, row: int) -> float:
    """Smooth over decades; in run 0 NaN and Inf on rank 1 from ``BAD`` on; in run 1 twice as large from step 30 on."""
    if run == 0 and rank == 1 and step >= BAD and row < 2:
        return math.inf if row else math.nan
    size = 10 ** (math.sin(step / 7 + row) * 2) * (1 + 0.1 * rank) * (2 if run == 1 and step >= 30 and row == 3 else 1)
    return float(f"{size:.6g}")


class Written(NamedTuple):
    """The two runs, with a server over both, and a browser."""

    ranks: list[list[WrittenRank]]
    server: ViewServer
    driver: Any

    def grow(self, steps: range) -> None:
        """Write further steps of the first run."""
        for step in steps:
            for rank, writer in enumerate(self.ranks[0]):
                writer.write(step, [value(0, step, rank, row) for row in range(len(ROWS))])

    def show(self, query: str, *, anew: bool = True) -> None:
        """Open an address and wait until all of it is drawn."""
        if anew:
            self.driver.get(f"{self.server.base}/{query}")
        wait_until(self.driver, DRAWN)

    def settle(self, script: str, *arguments: object) -> Any:
        """Wait for a JavaScript expression to become true, and until all is drawn; return the expression."""
        wait_until(self.driver, script, *arguments)
        self.show("", anew=False)
        return wait_until(self.driver, script, *arguments)

    def text(self, selector: str) -> str:
        return str(self.driver.find_element("css selector", selector).text)

    def click(self, selector: str) -> None:
        self.driver.find_element("css selector", selector).click()

    def query(self) -> dict[str, str]:
        """The state in the address."""
        pairs = self.driver.execute_script("return [...new URLSearchParams(location.search)]")
        return dict(pairs)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    root = tmp_path_factory.mktemp("runs")
    ranks = []
    for run, name in enumerate(["left", "right"]):
        ranks.append([WrittenRank(root / name, rank, ROWS, world=RANKS) for rank in range(RANKS)])
        for step in range(STEPS):
            for rank, writer in enumerate(ranks[run]):
                writer.write(step, [value(run, step, rank, row) for row in range(len(ROWS))])
        losses = [f"0,loss,{step},{3 / (step + 1)!r},[],float64\n" for step in range(STEPS)]
        numbers = ranks[run][0].directory / "run_0-99.csv"
        numbers.write_text("vpp_stage,name,step,value,shape,dtype\n" + "".join(losses), encoding="utf-8")
    places = [root / "left", root / "right"]
    with (
        viewing(tmp_path_factory.mktemp("server"), *places) as server,
        browser(tmp_path_factory.mktemp("profile")) as driver,
    ):
        driver.get(server.address)
        made = Written(ranks, server, driver)
        made.show("", anew=False)
        made.settle("document.querySelectorAll('#runs tr[data-run]').length === 2")
        yield made


def line_of(page: Written, where: str, run: int = 0) -> dict[str, str]:
    """The row of a file that a place such as ``directory/file.csv:3`` names, by Python's own reader."""
    place, _, line = where.rpartition(":")
    path = page.ranks[run][0].directory.parent / place
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        return next(row for row in reader if reader.line_num == int(line))


def test_a_finding_leads_to_its_row_in_three_clicks(page: Written) -> None:
    """From the list of runs: the run, the finding; the row stands there with its file and line."""
    page.show("")
    link = page.driver.find_element("link text", "left")
    link.click()
    page.settle("document.querySelector('#findings tr[data-finding]')")
    finding = page.driver.find_element("css selector", "#findings tr[data-finding]")
    assert "fc1.weight" in finding.text
    finding.click()
    where = page.settle("document.querySelector('#row-file')?.textContent")
    row = line_of(page, where)
    assert (row["name"], row["step"]) == ("fc1.weight", str(BAD))
    assert "-rank1-" in where
    state = page.query()
    assert (state["row"], state["rank"], state["step"]) == ("fc1.weight", "1", str(BAD))
    assert page.text(f"#row td[data-op='{state['op']}']") == "NaN"
    assert math.isnan(float(row[state["op"]]))


def test_cells_and_their_colours_are_those_of_numpy(page: Written) -> None:
    """Under the pointer stand the extremes over ranks; larger is darker; NaN and Inf have colours of their own."""
    page.show(f"?run=0&{CELL}&scale=all")
    scanned = page.driver.execute_script(SCAN, True)
    values = np.array([[[value(0, s, r, row) for r in range(RANKS)] for s in range(STEPS)] for row in range(len(ROWS))])
    shades, seen = [], set()
    for text, pixels in scanned.items():
        label, _, rest = text.rpartition(", step ")
        step, *parts = rest.split(" · ")
        row = next(n for n, name in enumerate(ROWS) if name == label)
        own = values[row, int(step)]
        good = own[~np.isnan(own)]
        seen.add((row, int(step)))
        colours = {tuple(pixel) for pixel in pixels}
        assert ("1 × NaN" in parts) == bool(np.isnan(own).any())
        assert ("1 × Inf" in parts) == bool(np.isinf(own).any())
        low, high = next(part for part in parts if "…" in part).replace("Inf", "inf").split(" … ")
        np.testing.assert_allclose([float(low), float(high)], [good.min(), good.max()], rtol=1e-4)
        assert parts[-1] == f"rank {1 if np.isnan(own).any() else int(np.nanargmax(own))}"
        if len(good) < RANKS or np.isinf(own).any():
            assert ((230, 0, 126) in colours) == bool(np.isnan(own).any())
            assert ((247, 208, 56) in colours) == bool(np.isinf(own).any())
        else:
            middle = pixels[len(pixels) // 2]
            shades.append((math.log10(good.max()), float(np.dot(middle, [0.299, 0.587, 0.114]))))
    assert seen == {(row, step) for row in range(len(ROWS)) for step in range(STEPS)}
    ordered = np.array(sorted(shades))
    assert np.corrcoef(ordered.T)[0, 1] < -0.95
    assert ordered[0, 1] - ordered[-1, 1] > 100


def test_a_cell_is_reached_and_left_by_keys(page: Written) -> None:
    """Arrows move over cells, Enter shows the row, its curve has every rank's number, and Escape goes back."""
    keys = require("selenium.webdriver.common.keys").Keys
    page.show(f"?run=0&{CELL}")
    heatmap = page.driver.find_element("id", "heatmap")
    heatmap.send_keys(*[keys.ARROW_DOWN] * 4, keys.ARROW_RIGHT, keys.SHIFT + keys.ARROW_RIGHT)  # biases lie below
    assert page.text("#readout").startswith("<b>fc1</b>.bias, step 11 · ")
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.driver.execute_script(f"return document.activeElement.id + {outline}") == "heatmapsolid"
    heatmap.send_keys(keys.ENTER)
    where = page.settle("document.querySelector('#row-file')?.textContent")
    row = line_of(page, where)
    assert (row["name"], row["step"]) == ("<b>fc1</b>.bias", "11")
    assert float(page.text("#row td[data-op='max']")) == float(row["max"]) == value(0, 11, 2, 1)
    chart = page.driver.find_element("css selector", "#over-ranks .chart")
    read = {}
    for key in [keys.ARROW_LEFT, keys.ARROW_UP, keys.ARROW_UP, keys.ARROW_DOWN, keys.ARROW_DOWN]:
        chart.send_keys(key)
        at, rank, number = re.fullmatch(r"step (\d+)\s+rank (\d): (\S+)", page.text("#over-ranks output")).groups()
        read[int(rank)] = (int(at), float(number))
    assert {rank: at for rank, (at, _) in read.items()} == dict.fromkeys(range(RANKS), 11)
    for rank, (_, number) in read.items():
        assert number == pytest.approx(value(0, 11, rank, 1), rel=1e-5)
    heatmap.send_keys(keys.ESCAPE)
    assert {"row", "step"} & page.query().keys() == set()
    heatmap.send_keys(keys.ESCAPE)
    page.settle("document.querySelector('#runs')")
    page.driver.find_element("link text", "left").send_keys(keys.ENTER)
    page.settle("document.querySelector('#findings tr[data-finding]')")
    page.driver.find_element("css selector", "#findings tr[data-finding]").send_keys(keys.ARROW_DOWN, keys.ENTER)
    assert page.settle("document.querySelector('#row-row')?.textContent") in ROWS


def test_dragging_zooms_and_a_pasted_address_shows_the_same(page: Written) -> None:
    """Steps of the rectangle; back and forward undo and redo; curves have the same steps."""
    page.show(f"?run=0&{CELL}&row=fc2.weight&rank=2&step=30")
    chains = require("selenium.webdriver.common.action_chains")
    heatmap = page.driver.find_element("id", "heatmap")
    width = heatmap.size["width"]
    drag = chains.ActionChains(page.driver, duration=10).move_to_element_with_offset(heatmap, round(width * 0.1), -5)
    drag.click_and_hold().move_by_offset(round(width * 0.2), 2).release().perform()
    state = page.settle(
        "new URLSearchParams(location.search).get('to') && Object.fromEntries(new URLSearchParams(location.search))"
    )
    first, last = int(state["from"]), int(state["to"])
    assert 10 < first < last < STEPS - 2
    scan = {int(re.findall(r", step (\d+) ·", text)[-1]) for text in page.driver.execute_script(SCAN)}
    assert scan == set(range(first, last + 1))
    page.driver.execute_script("history.back()")
    page.settle("!new URLSearchParams(location.search).get('to')")
    assert page.driver.find_element("id", "whole").is_displayed() is False
    page.show(f"?run=0&{CELL}&row=fc2.weight&rank=2&step=30&from={first}&to={last}")
    assert {int(re.findall(r", step (\d+) ·", text)[-1]) for text in page.driver.execute_script(SCAN)} == scan
    assert float(page.text("#row td[data-op='max']")) == value(0, 30, 2, 3)
    page.click("#whole")
    page.settle("!new URLSearchParams(location.search).get('to')")
    assert len(page.driver.execute_script(SCAN)) == len(ROWS) * STEPS


def test_two_runs_show_their_first_difference(page: Written) -> None:
    """Chosen in the list; both rows stand beside each other, and curves of both have the numbers of the files."""
    page.show("")
    for box in page.driver.find_elements("css selector", "#runs input[type=checkbox]"):
        box.click()
    page.click("#compare")
    page.settle("document.querySelector('#show-difference')")
    page.click("#show-difference")
    page.settle("document.querySelector('#left-file') && document.querySelector('#right-file')")
    state = page.query()
    step, rank, row = int(state["step"]), int(state["rank"]), ROWS.index(state["row"])
    assert (state["run"], state["against"], step, rank, row) == ("0", "1", BAD, 1, 0)
    for run, side in enumerate(["left", "right"]):
        written = float(line_of(page, page.text(f"#{side}-file"), run)["max"])
        np.testing.assert_equal([written, float(page.text(f"#{side} td[data-op='max']"))], [value(run, BAD, 1, 0)] * 2)
    page.show("?run=0&against=1&row=fc2.weight&rank=0&step=30&" + CELL)
    chart = page.driver.find_element("css selector", "#over .chart")
    keys = require("selenium.webdriver.common.keys").Keys
    read = []
    for key in [keys.ARROW_LEFT, keys.ARROW_DOWN]:
        chart.send_keys(key)
        read.append(page.text("#over output"))
    assert [text.split()[2] for text in read] == ["A:", "B:"]
    assert [float(text.split()[3]) for text in read] == pytest.approx(
        [value(0, 30, 0, 3), value(1, 30, 0, 3)], rel=1e-5
    )


def test_numbers_of_the_run_are_curves(page: Written) -> None:
    """They are asked for when they are on the screen, and are those of the file."""
    page.show(f"?run=0&{CELL}&step=5")
    page.driver.execute_script("document.getElementById('numbers').scrollIntoView()")
    page.settle("document.querySelector('#numbers .uplot')")
    keys = require("selenium.webdriver.common.keys").Keys
    page.driver.find_element("css selector", "#numbers .chart").send_keys(keys.ARROW_RIGHT)
    step, number = re.fullmatch(r"step (\d+)\s+loss: (\S+)", page.text("#numbers output")).groups()
    assert step == "5"
    assert float(number) == pytest.approx(3 / 6, rel=1e-5)


def test_names_are_shown_and_never_run(page: Written) -> None:
    """A row may be called anything; the page shows it as it is."""
    page.show("")
    query = f"?run=0&{CELL}&rank=0&step=3&row="
    page.driver.get(
        page.server.base
        + "/"
        + query
        + page.driver.execute_script("return encodeURIComponent(arguments[0])", f"{EVIL}.weight")
    )
    page.settle("document.querySelector('#row-row')")
    assert page.text("#row-row") == f"{EVIL}.weight"
    assert page.text("#curve-title") == f"max of grad_reduced: {EVIL}.weight"
    assert page.driver.execute_script("return [window.evil ?? null, document.querySelectorAll('main img').length]") == [
        None,
        0,
    ]
    assert float(page.text("#row td[data-op='max']")) == value(0, 3, 0, 2)


def test_the_language_is_that_of_the_address_or_the_browser(page: Written) -> None:
    """A button changes it and keeps the rest of the state; no text is left in the other language."""
    page.show(f"?run=0&{CELL}&row=fc1.weight&rank=1&step={BAD}")
    page.click("button[data-lang='zh']")
    page.settle("document.documentElement.lang === 'zh-CN' && document.querySelector('#row-file')")
    assert page.text("#findings h2").startswith(CHINESE["findings"])
    assert page.text(".row-card h2") == CHINESE["row.title"]
    assert (page.query()["lang"], page.query()["row"]) == ("zh", "fc1.weight")
    agent = page.driver.execute_script("return navigator.userAgent")
    override = "Emulation.setUserAgentOverride"
    page.driver.execute_cdp_cmd(override, {"userAgent": agent, "acceptLanguage": "zh-CN"})
    try:
        page.show("")
        assert page.text("h1") == CHINESE["runs"]
    finally:
        page.driver.execute_cdp_cmd(override, {"userAgent": agent, "acceptLanguage": "en-US"})
    page.show("?lang=en")
    assert page.text("h1") == "Runs"


def test_growth_appears_by_itself_and_not_in_a_hidden_window(page: Written) -> None:
    """New steps are drawn without a reload; while nobody looks there is no stream, and afterwards all is there."""
    page.show(f"?run=0&{CELL}&row=fc2.weight&rank=0&step=3")
    page.settle("document.querySelector('#live').classList.contains('live') && document.querySelector('.live.live')")
    page.grow(range(STEPS, STEPS + 2))
    page.settle("document.querySelector('#run-steps').textContent === arguments[0]", f"0–{STEPS + 1}")
    assert any(f", step {STEPS + 1} · " in text for text in page.driver.execute_script(SCAN))
    page.driver.minimize_window()
    wait_until(page.driver, "document.hidden && document.querySelector('#live').classList.contains('paused')")
    page.grow(range(STEPS + 2, STEPS + 4))
    assert page.text("#run-steps") == f"0–{STEPS + 1}"
    page.driver.set_window_rect(0, 0, 1360, 1000)
    page.settle("document.querySelector('#run-steps').textContent === arguments[0]", f"0–{STEPS + 3}")
    assert len(page.driver.execute_script(SCAN)) == len(ROWS) * (STEPS + 4)


def test_the_page_complains_of_nothing_and_asks_nobody_else(page: Written) -> None:
    """No error, no warning, no breach of the Content-Security-Policy; every request goes to the server."""
    assert errors(page.driver) == []
    messages = [json.loads(entry["message"])["message"] for entry in page.driver.get_log("performance")]
    requests = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    # The browser's own first tab asks too: what counts is what the server's documents ask for.
    ours = {r["request"]["url"] for r in requests if r["documentURL"].startswith(page.server.base)}
    assert any("/api/runs/0/heatmap" in url for url in ours)
    assert {url for url in ours if not url.startswith((page.server.base, "data:", "about:"))} == set()
