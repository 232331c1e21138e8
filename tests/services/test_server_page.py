"""The live page in a real browser, and the numbers for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from probe.core.naming import STEP_SECONDS
from tests.core.analysis.browsing import browser, errors, requested, wait_until
from tests.required import require
from tests.services.server_process import Served, batch, serving
from tests.waiting import wait_for

pytestmark = pytest.mark.browser

require("starlette")
require("uvicorn")

TOKEN = "token-for-the-page-24-ch"
EVIL = "</script><script>window.evil = 1</script><img src=x onerror=window.evil=2>"
TEXTS = "return [...arguments[0].querySelectorAll('td, th')].map((cell) => cell.textContent)"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("server") / "server.sqlite", token=TOKEN) as started:
        yield started


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def next_round(driver: Any) -> None:
    """Waits until the page has asked once more."""
    rounds = driver.execute_script("return Number(document.body.dataset.rounds)")
    wait_until(
        driver, "Number(document.body.dataset.rounds) >= arguments[0] && document.body.dataset.ready", rounds + 2
    )


def texts(driver: Any, selector: str) -> list[str]:
    found: list[str] = driver.execute_script(TEXTS, driver.find_element("css selector", selector))
    return found


def test_the_page_shows_jobs_ranks_and_findings(driver: Any, server: Served) -> None:
    """After the token is typed: 300 ranks as a line, the worst of them below; hostile texts stay texts; it renews
    itself; nothing is asked of another place."""

    def send(rank: int) -> None:
        slow, loss = 5.0 if rank == 77 else 1.0, "NaN" if rank == 88 else 2.5
        values = {"loss": loss, "grad_norm": 0.25, STEP_SECONDS: slow, "phase": EVIL}
        message = batch(EVIL, rank=rank, run=f"{rank}", numbers=[5], values=values, world=300)
        wait_for(lambda: server.post(message)[0] == 200)  # a busy server asks for another attempt

    with ThreadPoolExecutor(8) as clients:
        list(clients.map(send, range(300)))
    server.post(
        batch(EVIL, run="0", numbers=[9], kind="finding", values={"rule": "Rule", "text": EVIL}), "/v1/findings"
    )
    driver.get(server.address)
    wait_until(driver, "document.getElementById('entry')?.hidden === false")
    assert driver.find_element("id", "status").text == "not up to date: a token is needed"
    driver.find_element("id", "token").send_keys(TOKEN)
    driver.find_element("id", "enter").click()
    wait_until(driver, "document.body.dataset.ready === 'yes'")
    job = texts(driver, "#jobs tbody tr")
    assert job[:2] == [EVIL, "launch"]
    assert job[2] == "300 alive of 300"
    assert job[3:5] == ["5", "2.5"]
    assert job[5:7] == ["0.25", "1 s"]
    assert len(driver.find_elements("css selector", "#ranks tbody tr")) == 20
    worst = texts(driver, "#ranks tbody tr")
    assert (worst[0], worst[2], worst[4]) == ("88", EVIL, "NaN")
    assert texts(driver, "#ranks tbody tr:nth-child(2)")[0] == "77"
    assert driver.find_element("id", "hidden").text == "280 further processes"
    assert EVIL in texts(driver, "#events tbody tr")[4]
    server.post(batch(EVIL, rank=0, run="0", numbers=[6, 7, 8], values={"loss": 1.25}, world=300))
    next_round(driver)
    assert texts(driver, "#jobs tbody tr")[3:5] == ["8", "1.25"]
    assert driver.execute_script("return document.querySelectorAll('.jobs .uplot').length") == 1
    assert driver.execute_script("return window.evil") is None
    assert [line for line in errors(driver) if "401" not in line] == []
    assert {url for url in requested(driver) if not url.startswith((server.address, "data:"))} == set()


def test_a_server_that_is_gone_is_shown(driver: Any, server: Served) -> None:
    """The page says that it is not up to date, and keeps its numbers."""
    driver.get(server.address)
    wait_until(driver, "document.body.dataset.ready === 'yes'")
    server.end()
    wait_until(driver, "document.getElementById('status')?.textContent.startsWith('not up to date')")
    assert len(driver.find_elements("css selector", "#ranks tbody tr")) == 20
