"""Layout of the page in a browser: nothing is cut, overlaps, is torn or out of line, in both languages and sizes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.core.analysis.browsing import errors
from tests.required import require
from tests.view.page_pictures import LANGUAGES, READY, SIZES, Shown, shown

pytestmark = pytest.mark.browser

require("duckdb")
require("starlette")

FAULTS = """
const width = arguments[0] + 1; // the layout of a phone may be wider than its window
const style = (node) => getComputedStyle(node);
const visible = (node) => node.checkVisibility() && node.getBoundingClientRect().width > 0;
const scrolls = (node) => node !== document.body && node !== null
  && (/auto|scroll/.test(style(node).overflowX) || scrolls(node.parentElement));
const name = (node) => `${node.tagName}.${node.className}#${node.id}: ${node.textContent.slice(0, 40)}`;
const boxes = (node) => {
  const range = document.createRange();
  range.selectNodeContents(node);
  return [...range.getClientRects()];
};
const all = [...document.querySelectorAll("body *")].filter(visible);
const hasText = (node) => [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
const hides = (node) => /hidden|clip/.test(style(node).overflowX) && style(node).textOverflow !== "ellipsis";
const texts = all.filter((node) => hasText(node) && !node.closest("[role=application], select, .scroll"));
const placed = texts.flatMap((node) => boxes(node).map((box) => [node, box]));
const meet = (one, other) => Math.min(one.right, other.right) - Math.max(one.left, other.left) > 2
  && Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top) > 4;
const apart = (one, other) => !one.contains(other) && !other.contains(one);
const covers = ([node, box], n) => placed.slice(n + 1).filter(([other, own]) => apart(node, other) && meet(box, own))
  .map(([other]) => `${name(node)} / ${name(other)}`);
const facts = ".facts dt, .headline .fact, .badge, .state, th, button, .strip b";
const pen = document.createElement("canvas").getContext("2d");
const lengthOf = (select) => {
  pen.font = style(select).font;
  return pen.measureText(select.selectedOptions[0].text).width;
};
// the room for the arrow of a select is not in its style
const roomOf = (select) => select.clientWidth - 2 * parseFloat(style(select).paddingLeft) - 14;
const wide = document.documentElement.scrollWidth;
return {
  sideways: wide > width ? [wide] : [],
  outside: all.filter((node) => !scrolls(node) && node.getBoundingClientRect().right > width).map(name),
  cut: all.filter((node) => !node.matches("input, select, option") && hides(node)
    && node.scrollWidth > node.clientWidth + 1).map(name),
  overlapping: placed.flatMap(covers),
  choices: all.filter((node) => node.matches("select") && lengthOf(node) > roomOf(node))
    .map((node) => node.selectedOptions[0].text),
  ragged: all.filter((node) => style(node).display === "table-row")
    .filter((row) => new Set([...row.cells].map((cell) => Math.round(cell.getBoundingClientRect().bottom))).size > 1)
    .map(name),
  torn: [...document.querySelectorAll(facts)].filter(visible)
    .filter((node) => new Set(boxes(node).map((box) => Math.round(box.top / 4))).size > 1).map(name),
};
"""
"""JavaScript: what is wrong with the layout of a page."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    with shown(tmp_path_factory.mktemp("pages")) as opened:
        yield opened


WINDOWS = [(language, size) for language in LANGUAGES for size in SIZES if (language, size) != ("zh", "wide")]
"""Chinese, which is the shorter, has room in a wide window wherever English has."""


@pytest.mark.parametrize(("language", "size"), WINDOWS)
@pytest.mark.parametrize("name", READY)
def test_nothing_is_cut_torn_or_covered(pages: Shown, name: str, language: str, size: str) -> None:
    """No page scrolls sideways; no text lies on another, leaves its box or breaks within a fact."""
    pages.open(name, SIZES[size], language)
    faults = pages.driver.execute_script(FAULTS, SIZES[size][0])
    assert {kind: found for kind, found in faults.items() if found} == {}
    assert errors(pages.driver) == []


def test_a_run_opens_on_its_verdict(pages: Shown) -> None:
    """Kind, place, step and rank stand in the first lines; the values before and at; the row and its curve are filled;
    the picture has an arrow at the cell; nothing has to be chosen first."""
    pages.open("nan", SIZES["wide"], "en")
    driver = pages.driver
    headline = driver.find_element("css selector", "#cause .headline").text
    assert headline.startswith("NaN")
    assert "layers.2.norm2" in headline
    assert "step 41" in headline
    numbers = [cell.text for cell in driver.find_elements("css selector", "#cause .strip b")]
    assert numbers[2] == numbers[5] == "NaN"
    assert "NaN" not in numbers[:2] + numbers[3:5]
    assert driver.find_element("id", "row-row").text.startswith("layers.2.norm2")
    assert " 41 " in driver.find_element("id", "row-step").text
    assert driver.find_elements("css selector", "#over-ranks .uplot")
    assert driver.execute_script("return location.search") == f"?run={driver.current_url.split('run=')[1][0]}&lang=en"
    bottom = driver.execute_script("return document.querySelector('#picture').getBoundingClientRect().top")
    assert bottom < SIZES["wide"][1] / 2


def test_a_healthy_run_has_a_verdict_and_nothing_empty(pages: Shown) -> None:
    """Steps, the loss from and to, and what was judged; no card without content."""
    pages.open("healthy", SIZES["wide"], "en")
    text = pages.driver.find_element("id", "healthy").text
    assert text.startswith("healthy")
    assert "0–59" in text
    assert "5 → 2.02" in text
    for empty in ("row", "findings", "over-ranks", "around"):
        assert not pages.driver.find_element("id", empty).is_displayed()


def test_runs_are_listed_with_badge_and_loss(pages: Shown) -> None:
    """Nobody has opened a run: its state, first cause and loss are there."""
    pages.open("list", SIZES["phone"], "en")
    rows = {
        row.find_element("css selector", "a").text: row
        for row in pages.driver.find_elements("css selector", "#runs tr")
    }
    assert rows["gpt_small"].find_element("css selector", ".badge.bad").text == "NaN at 41"
    assert "layers.2.norm2" in rows["gpt_small"].find_element("css selector", ".why code").text
    assert rows["gpt_small_again"].find_element("css selector", ".badge.good").text == "healthy"
    assert all(row.find_elements("css selector", "canvas.sparkline") for row in rows.values())


def test_what_was_not_sent_is_a_dash(pages: Shown) -> None:
    """A job without seconds of its steps has no number for them, and none that is called NaN."""
    pages.open("jobs", SIZES["wide"], "en")
    rows = {row.text.split()[0]: row for row in pages.driver.find_elements("css selector", "#jobs tbody tr")}
    cells = [cell.text for cell in rows["finetune"].find_elements("tag name", "td")]
    assert cells[4:7] == ["2", "–", "–"]
    assert [cell.text for cell in rows["pretrain"].find_elements("tag name", "td")][5:7] == ["0.8", "0.42 s"]
