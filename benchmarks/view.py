"""The page over a run of 40 million rows: first picture, zoom, curves, memory, growth, the cost for training beside.

A server of its own, asked over HTTP as the page asks it. Exits with 1 if an aim is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # the step of training is work on one processor

import numpy as np
from _report import milliseconds, publish, table, verdict

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import httpx  # noqa: E402
import psutil  # noqa: E402

from tests.core.analysis.browsing import browser, wait_until  # noqa: E402
from tests.simulated_run import ParallelSizes, SimulatedRun  # noqa: E402
from tests.view.view_data import WrittenRank  # noqa: E402

RANKS, LAYERS, STEPS = 16, 500, 2500
"""Of two signals: 40 million rows."""
SIGNAL, OP = "grad_reduced", "norm"
ZOOMS, CURVES, PICTURES = 60, 40, 10
AIMS = {
    "first, with levels": 1.0,
    "first, without": 3.0,
    "zoom": 0.2,
    "curve": 0.3,
    "memory": 512.0,
    "tab": 200.0,
    "new step": 2.0,
    "training": 0.5,
}


class Server(NamedTuple):
    """A running server and a client with its cookie."""

    process: subprocess.Popen[str]
    client: Any
    address: str

    def seconds(self, path: str, **parameters: Any) -> float:
        """Time of one answer."""
        began = time.perf_counter()
        answer = self.client.get(path, params=parameters)
        answer.raise_for_status()
        return time.perf_counter() - began

    def peak(self) -> float:
        """Largest resident memory in MiB."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


@contextmanager
def serving(root: Path, cache: Path) -> Iterator[Server]:
    """Start a server over ``root`` and end it."""
    command = [sys.executable, "-m", "probe", "view", str(root), "--no-browser"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(cache)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    address = process.stdout.readline().split()[-1]
    try:
        with httpx.Client(base_url=address.partition("/?")[0], timeout=600, trust_env=False) as client:
            client.get(address)
            yield Server(process, client, address)
    finally:
        process.terminate()
        process.wait()


def first_picture(root: Path, cache: Path) -> float:
    """Seconds from the first request to the first picture, with all that the page asks for before it."""
    with serving(root, cache) as server:
        return sum(
            (
                server.seconds("/"),
                server.seconds("/api/runs"),
                server.seconds("/api/runs/0"),
                server.seconds("/api/runs/0/heatmap", signal=SIGNAL, op=OP, columns=800),
            )
        )


def many_pictures(root: Path, cache: Path, steps: int) -> tuple[list[float], list[float], float]:
    """Seconds of zooms to random spans and of curves of random rows over all ranks; and the server's memory."""
    random = np.random.default_rng(0)
    with serving(root, cache) as server:
        about = server.client.get("/api/runs/0").json()
        rows = next(each["rows"] for each in about["signals"] if each["name"] == SIGNAL)
        server.seconds("/api/runs/0/heatmap", signal=SIGNAL, op=OP)
        zooms = []
        for _ in range(ZOOMS):
            first, last = sorted(random.integers(0, steps, 2).tolist())
            asked = {"from": first, "to": last}
            zooms.append(server.seconds("/api/runs/0/heatmap", signal=SIGNAL, op=OP, columns=800, **asked))
        curves = [
            server.seconds("/api/runs/0/curve", signal=SIGNAL, op=OP, row=random.choice(rows), ranks=f"0-{RANKS - 1}")
            for _ in range(CURVES)
        ]
        return zooms, curves, server.peak()


def tab_memory(root: Path, cache: Path, steps: int) -> float:
    """Largest memory in MiB of the browser's process that shows the page, its own and not shared with others: after the
    picture of the whole run, ``PICTURES`` zooms, and a curve over all ranks."""
    cell = f"?run=0&signal={SIGNAL}&op={OP}"
    peak = 0.0
    with serving(root, cache) as server, tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as driver:
        rows = next(
            each["rows"] for each in server.client.get("/api/runs/0").json()["signals"] if each["name"] == SIGNAL
        )
        pages = [cell, *(f"{cell}&from={n * steps // 20}&to={n * steps // 20 + steps // 4}" for n in range(PICTURES))]
        pages.append(f"{cell}&row={rows[0]}&rank=0&step={steps // 2}")
        driver.get(server.address)
        for page in pages:
            driver.get(f"{server.client.base_url}/{page}")
            drawn = "document.querySelector('main').children.length && document.body.dataset.pending === '0'"
            wait_until(driver, drawn)
            shown = [p for p in psutil.Process(driver.service.process.pid).children(True) if _renders(p)]
            peak = max(peak, *(p.memory_full_info().uss / 2**20 for p in shown))
    return peak


def _renders(process: psutil.Process) -> bool:
    return "--type=renderer" in process.cmdline()


def new_steps(folder: Path, number: int) -> list[float]:
    """Seconds from the end of a write to the picture that has the step, asked for after its event."""
    rank = WrittenRank(folder / "run", 0, [f"layer.{n}" for n in range(LAYERS)], world=1, steps_per_file=100)
    for step in range(200):
        rank.write(step, np.arange(LAYERS) + 0.5)
    seconds = []
    with serving(folder / "run", folder / "cache") as server:
        cursor = server.client.get("/api/runs").json()["cursor"]
        with server.client.stream("GET", "/api/events", params={"runs": "0", "cursor": cursor}) as events:
            lines = events.iter_lines()
            for step in range(200, 200 + number):
                time.sleep(0.37)  # no multiple of a second
                rank.write(step, np.arange(LAYERS) + 0.5)
                written = time.perf_counter()
                while True:
                    line = next(lines)
                    if line.startswith("data: ") and any(r["last_step"] == step for r in json.loads(line[6:])["runs"]):
                        break
                server.seconds("/api/runs/0/heatmap", signal=SIGNAL, op="max", columns=800)
                seconds.append(time.perf_counter() - written)
    return seconds


def training_cost(folder: Path, rounds: int, steps: int) -> tuple[float, float, float]:
    """Percent that a step takes longer with the page open, with the ends of its interval: paired, in turns.

    The step is work on one processor; after each the rank writes its rows, and the page follows as it does in a
    browser: an event, then the picture.
    """
    rank = WrittenRank(folder / "run", 0, [f"layer.{n}" for n in range(100)], world=1, steps_per_file=100)
    work = np.random.default_rng(0).standard_normal((400, 400))
    number = 0

    def step() -> float:
        nonlocal number
        began = time.perf_counter()
        made = work
        for _ in range(25):
            made = made @ work / 20.0
        seconds = time.perf_counter() - began
        rank.write(number, np.arange(100) + 0.5)
        number += 1
        return seconds

    def one_round() -> float:
        return float(np.median([step() for _ in range(steps)]))

    with serving(folder / "run", folder / "cache") as server:
        one_round()
        server.seconds("/api/runs/0")
        differences = []
        for _ in range(rounds):
            plain = one_round()
            with following(server):
                differences.append(100 * (one_round() - plain) / plain)
    random = np.random.default_rng(0)
    means = [np.median(random.choice(differences, len(differences))) for _ in range(2000)]
    low, high = np.percentile(means, [2.5, 97.5])
    return float(np.median(differences)), float(low), float(high)


@contextmanager
def following(server: Server) -> Iterator[None]:
    """A page that follows the run: it asks for the picture after each event."""
    ended = threading.Event()

    def follow() -> None:
        with httpx.Client(base_url=server.client.base_url, timeout=60, trust_env=False) as client:
            client.cookies.update(server.client.cookies)
            with client.stream("GET", "/api/events", params={"runs": "0"}) as events:
                for line in events.iter_lines():
                    if ended.is_set():
                        return
                    if line.startswith("data: "):
                        server.seconds("/api/runs/0/heatmap", signal=SIGNAL, op="max", columns=800)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def line(name: str, text: str, aim: str, *figure: float) -> tuple[list[str], bool]:
    """Row of the table, and whether the aim is met."""
    word = verdict(AIMS[aim], *figure)
    return [name, f"{text}, aim {AIMS[aim]:g}: {word}"], word != "MISSED"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="part of the 40 million rows, such as 0.1")
    parser.add_argument("--rounds", type=int, default=20, help="pairs with and without the page beside training")
    parser.add_argument("--folder", type=Path, help="where the run is kept for another time; else it is removed")
    parser.add_argument("--output", type=Path, help="folder, or .md file, for the result")
    args = parser.parse_args()
    steps = max(100, int(STEPS * args.scale))
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        root = (args.folder or folder) / f"run-{steps}"
        run = SimulatedRun(ParallelSizes(dp=RANKS), seed=1, steps=steps, rows=LAYERS, steps_per_file=100, drift=1e-4)
        if not root.is_dir():
            run.write(root)
        without = [timed_without(lambda: first_picture(root, folder / "cache"), folder / "cache") for _ in range(3)]
        with_levels = [first_picture(root, folder / "cache") for _ in range(5)]
        zooms, curves, memory = many_pictures(root, folder / "cache", steps)
        tab = tab_memory(root, folder / "cache", steps)
        fresh = new_steps(folder / "growth", 20)
        cost, low, high = training_cost(folder / "training", args.rounds, 60)
    made_rows = [
        line("first picture, levels kept (s)", f"{np.median(with_levels):.2f}", "first, with levels", max(with_levels)),
        line("first picture, no levels (s)", f"{np.median(without):.2f}", "first, without", max(without)),
        p95_line("zoom, 95th percentile", zooms, "zoom"),
        p95_line(f"curve of {RANKS} ranks, 95th percentile", curves, "curve"),
        line("largest memory of the server (MiB)", f"{memory:.0f}", "memory", memory),
        line("largest memory of the browser's tab (MiB)", f"{tab:.0f}", "tab", tab),
        line("a new step on the page (s), longest", f"{max(fresh):.2f}", "new step", max(fresh)),
        line("a step on one core beside it (%)", f"{cost:+.2f} [{low:+.2f}, {high:+.2f}]", "training", low, high),
    ]
    note = f"{run.row_count:,} rows in Parquet: {RANKS} ranks, {LAYERS} rows of two signals, {steps:,} steps."
    publish("The local page", [note, table(["", ""], [row for row, _ in made_rows])], args.output, "duckdb")
    raise SystemExit(0 if all(good for _, good in made_rows) else 1)


def p95_line(name: str, seconds: list[float], aim: str) -> tuple[list[str], bool]:
    """Row of the table about many answers."""
    figure = float(np.percentile(seconds, 95))
    return line(f"{name} (s)", f"{figure:.3f} (median {milliseconds(float(np.median(seconds)))})", aim, figure)


def timed_without(measure: Callable[[], float], cache: Path) -> float:
    """The result of ``measure`` with an empty cache."""
    shutil.rmtree(cache, ignore_errors=True)
    return measure()


if __name__ == "__main__":
    main()
