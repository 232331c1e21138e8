"""A browser without a window, for the tests of pages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.required import require, require_program

PATIENCE = 180.0
"""Seconds after which a page counts as broken."""
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1360,1000",
)


@contextmanager
def browser(profile: Path) -> Iterator[Any]:
    """A Selenium driver; ``profile`` is a folder that nobody else uses."""
    webdriver = require("selenium.webdriver")
    service = require("selenium.webdriver.chrome.service")
    options = webdriver.ChromeOptions()
    options.binary_location = require_program("chromium", "chromium-browser", "google-chrome")
    for argument in (*ARGUMENTS, f"--user-data-dir={profile}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=service.Service(require_program("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def wait_until(driver: Any, script: str, *arguments: object) -> Any:
    """Wait until the JavaScript expression ``script`` is true and return it."""
    wait = require("selenium.webdriver.support.wait").WebDriverWait(driver, PATIENCE, 0.02)
    return wait.until(lambda _: driver.execute_script(f"return {script}", *arguments), script)


DRAWN = "document.querySelector('main')?.children.length && document.body.dataset.pending === '0'"
"""Whether a page has drawn all that it asked for."""
SCAN = """
const coloured = arguments[0] ?? false;
const [base, over] = document.querySelectorAll("#heatmap canvas");
const pixels = coloured ? base.getContext("2d").getImageData(0, 0, base.width, base.height) : null;
const box = over.getBoundingClientRect();
const found = {};
const far = coloured ? 2 : 6;
for (let y = 3; y < box.height; y += 3 * far) {
  for (let x = 1; x < box.width; x += far) {
    over.dispatchEvent(new PointerEvent("pointermove", { clientX: box.x + x, clientY: box.y + y }));
    const text = document.getElementById("readout").textContent;
    const at = 4 * (Math.round(y * devicePixelRatio) * base.width + Math.round(x * devicePixelRatio));
    if (text) (found[text] ??= []).push(pixels ? [...pixels.data.slice(at, at + 3)] : []);
  }
}
over.dispatchEvent(new PointerEvent("pointerleave"));
return found;
"""
"""What the page shows of each cell under the pointer, with the colours there."""


def settle(driver: Any, script: str = "true", *arguments: object) -> Any:
    """Wait for a JavaScript expression to become true, and until all is drawn; return the expression."""
    wait_until(driver, script, *arguments)
    wait_until(driver, DRAWN)
    return wait_until(driver, script, *arguments)


def open_page(driver: Any, path: Path, **state: object) -> None:
    """Open a file with a state, and wait until everything is drawn."""
    driver.get("about:blank")  # another fragment of the same file would not load it
    driver.get(f"{path.as_uri()}#{urlencode(state)}")
    settle(driver)


def choose(driver: Any, name: str, value: object) -> None:
    """Set a control of the page."""
    driver.execute_script(
        "const control = document.getElementById(arguments[0]); control.value = arguments[1];"
        "control.dispatchEvent(new Event('change'));",
        name,
        str(value),
    )
    settle(driver)


def click_cell(driver: Any, row: int, column: int) -> None:
    """Press the mouse over the middle of a cell of the heatmap."""
    plot = driver.find_element("id", "heatmap")
    state = """const [plot, row, column] = arguments;
        plot.scrollIntoView({ block: "center" });
        const [, over] = plot.querySelectorAll("canvas");
        const box = over.getBoundingClientRect();
        const firsts = (far, near, place) => {
          const found = new Map();
          for (let y = 2; y < box.height; y += near) for (let x = 2; x < box.width; x += far) {
            over.dispatchEvent(new PointerEvent("pointermove", { clientX: box.x + x, clientY: box.y + y }));
            const text = document.getElementById("readout").textContent;
            if (text && !found.has(text)) found.set(text, place(x, y));
          }
          return [...new Set(found.values())].sort((a, b) => a - b);
        };
        const columns = firsts(4, 24, (x, _) => x);
        const rows = firsts(48, 2, (_, y) => y);
        return [columns[column] + 4 - plot.clientWidth / 2, rows[row] + 4 - plot.clientHeight / 2];"""
    place = driver.execute_script(state, plot, row, column)
    chains = require("selenium.webdriver.common.action_chains")
    chains.ActionChains(driver, duration=10).move_to_element_with_offset(plot, *map(round, place)).click().perform()
    settle(driver)


def errors(driver: Any) -> list[str]:
    """Messages that the page has logged so far."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def requested(driver: Any) -> list[str]:
    """Every address that a page from a file has asked for so far, the file itself among them."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    asked = [one["request"]["url"] for one in sent if one["documentURL"].startswith("file:")]
    return [url for url in asked if not url.startswith(("data:", "blob:"))]
