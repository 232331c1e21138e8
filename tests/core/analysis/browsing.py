"""A browser without a window, for the tests of pages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


def open_page(driver: Any, path: Path) -> None:
    """Opens a file and waits until everything is drawn."""
    driver.get(path.as_uri())
    wait_until(driver, "document.body.dataset.ready === 'yes'")


def click_cell(driver: Any, plot: str, row: int, column: int) -> None:
    """Presses the mouse over the middle of a cell of a heatmap.

    So long after the last time that plotly, which gives two clicks 300 ms, does not take it for half of a double click.
    """
    wait_until(driver, "performance.now() - (window.pressed ?? -1e9) > 400")
    element = driver.find_element("id", plot)
    place = driver.execute_script(
        """const [plot, row, column] = arguments;
        plot.scrollIntoView({ block: "center" });
        const { xaxis, yaxis } = plot._fullLayout;
        const x = xaxis._offset + xaxis.d2p(plot.data[0].x[column]);
        const y = yaxis._offset + yaxis.d2p(row);
        return [x - plot.clientWidth / 2, y - plot.clientHeight / 2];""",
        element,
        row,
        column,
    )
    chains = require("selenium.webdriver.common.action_chains")
    chains.ActionChains(driver).move_to_element_with_offset(element, *map(round, place)).click().perform()
    driver.execute_script("window.pressed = performance.now()")


def errors(driver: Any) -> list[str]:
    """Messages that the page has logged so far."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def requested(driver: Any) -> list[str]:
    """Every address that a page from a file has asked for so far, the file itself among them."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    asked = [one["request"]["url"] for one in sent if one["documentURL"].startswith("file:")]
    return [url for url in asked if not url.startswith(("data:", "blob:"))]
