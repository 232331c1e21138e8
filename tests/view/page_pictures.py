"""Runs, jobs and states of the page that its pictures show; ``make pictures`` and the test of its layout take them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from probe.core.naming import STEP_SECONDS
from tests.core.analysis.browsing import DRAWN, browser, wait_until
from tests.core.analysis.report_data import write_run, written_loss
from tests.services.server_process import Served, batch, serving
from tests.view.view_process import ViewServer, viewing, wait_for

SIZES = {"wide": (1440, 900), "phone": (390, 844)}
"""Pixels of the windows."""
LANGUAGES = ("en", "zh")
MODULES = ("norm1", "attention.qkv", "attention.out", "norm2", "mlp.fc1", "mlp.fc2")
NAMES = [f"layers.{layer}.{module}.{kind}" for layer in range(4) for module in MODULES for kind in ("weight", "bias")]
FIRST = NAMES.index("layers.2.norm2.weight") // 2
"""Module in which the NaN begins."""
STEPS, BAD = range(60), 41
"""Steps of the runs, and the step of the first NaN."""


def value(broken: bool, scale: float) -> Any:
    """Return the function of the values of a run: in a broken one NaN from ``BAD`` on."""

    def of(step: int, rank: int, micro_step: int, row: int) -> float:
        started = step > BAD or (step == BAD and row >= FIRST)
        if broken and started:
            return math.nan
        return scale * (1 + row % 7) * (1 + 0.05 * math.sin(step + row)) * math.exp(-step / 200) * (1 + 0.01 * rank)

    return of


class Shown(NamedTuple):
    """Servers with all that the pictures show, and a browser."""

    view: ViewServer
    jobs: Served
    driver: Any

    def addresses(self) -> dict[str, str]:
        """Return the address of each picture by its name."""
        number = {run["name"]: run["number"] for run in self.view.get("/api/runs")["runs"]}
        bad, good = number["gpt_small"], number["gpt_small_again"]
        pages = {"list": "?", "nan": f"?run={bad}", "healthy": f"?run={good}", "compare": f"?run={bad}&against={good}"}
        return {name: f"{self.view.base}/{query}" for name, query in pages.items()} | {"jobs": f"{self.jobs.address}/?"}

    def open(self, name: str, size: tuple[int, int], language: str) -> None:
        """Open a page in a window of a size, and wait until it is drawn."""
        width, height = size
        phone = width < 500
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.get(f"{self.addresses()[name]}&lang={language}")
        wait_until(self.driver, READY[name])
        wait_until(self.driver, DRAWN if name != "jobs" else "true")


READY = {
    "list": "document.querySelectorAll('#runs .badge.bad, #runs .badge.good').length === 2",
    "nan": "document.querySelector('#around canvas')?.width && document.querySelector('#row-file')",
    "healthy": "document.querySelector('#healthy')",
    "compare": "document.querySelector('#verdict')?.classList.length > 1 && document.querySelector('#over .uplot')",
    "jobs": "document.body.dataset.ready === 'yes' && document.querySelector('.jobs .uplot')",
}
"""JavaScript: whether the page of a picture shows what it is about."""


@contextmanager
def shown(folder: Path) -> Iterator[Shown]:
    """Write the runs into a folder, and open servers and a browser over them."""
    for name, broken, scale in (("gpt_small", True, 1.0), ("gpt_small_again", False, 1.01)):
        ended = {"start_time": "2026-12-03T21:34:40+0800", "end_time": "2026-12-03T21:50:02+0800", "model": "Gpt"}
        ranks = write_run(folder / name, 2, STEPS, NAMES, value(broken, scale), steps_per_file=20, **ended)
        for directory in ranks:
            written_loss(
                directory, [math.nan if broken and step >= BAD else 2 + 3 * math.exp(-step / 12) for step in STEPS]
            )
    with (
        viewing(folder / "server", folder / "gpt_small", folder / "gpt_small_again") as view,
        serving(folder / "server.sqlite") as jobs,
        browser(folder / "profile") as driver,
    ):
        send_jobs(jobs)
        driver.get(view.address)
        wait_for(lambda: all(run["analysis"] == "done" for run in view.get("/api/runs")["runs"]))
        yield Shown(view, jobs, driver)


def send_jobs(server: Served) -> None:
    """Send heartbeats of two jobs, one of which has no seconds of its steps."""
    for job, extra in (("pretrain", {STEP_SECONDS: 0.42, "grad_norm": 0.8}), ("finetune", {})):
        for rank, step in product(range(4), range(6)):
            values = {"loss": 2.5 - step / 10, **extra}
            message = batch(job, rank=rank, run=f"{job}{rank}", numbers=[step], values=values, world=4)
            wait_for(partial(accepted, server, message))
    event = {"rule": "NotFinite", "text": "loss is nan"}
    server.post(batch("pretrain", run="pretrain0", numbers=[9], kind="finding", values=event), "/v1/findings")


def accepted(server: Served, message: object) -> bool:
    """Return whether a server has stored a message; a busy one asks for another attempt."""
    return server.post(message)[0] == 200
