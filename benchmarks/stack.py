"""From a fault to its notice, and what a scrape costs training.

First the stack of `resources/stack.py`, as it is shipped: weights become NaN, and the time counts until Alertmanager's
notice is at a webhook. Then a training on one thread with `format: prometheus` in pairs of blocks: scraped once a
second through `probe exporter`, and not scraped, in random order. Exits with 1 if an aim is missed.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
from _report import Array, arguments, interval, publish, table, verdict

ROOT = Path(__file__).resolve().parents[1]
NOTICE_AIM = 5.0
"""Seconds from a NaN to its notice."""
SCRAPE_AIM = 0.001
"""Part of a step that scraping may add."""
WAIT_SECONDS = 120.0
FAULTS = 5


class Notices(ThreadingHTTPServer):
    """Webhook that notes when an alert came."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: list[tuple[float, str, str]] = []
        """Time, name and state of each alert."""
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def server_close(self) -> None:
        """End the thread, then close."""
        self.shutdown()
        super().server_close()

    def wait(self, name: str, state: str, since: float) -> float:
        """Time at which an alert came after ``since``."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            for at, *found in list(self.seen):
                if at > since and found == [name, state]:
                    return at
            time.sleep(0.005)
        raise TimeoutError(f"{name} {state}: not within {WAIT_SECONDS:g} s")


class _Handler(BaseHTTPRequestHandler):
    server: Notices

    def do_POST(self) -> None:
        now, body = time.monotonic(), json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen += [(now, each["labels"]["alertname"], each["status"]) for each in body["alerts"]]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Write nothing."""


def notice_seconds(faults: int) -> list[float]:
    """Seconds from each of some faults to its notice."""
    specification = spec_from_file_location("stack_script", ROOT / "resources" / "stack.py")
    assert specification is not None
    assert specification.loader is not None
    module: Any = module_from_spec(specification)
    sys.modules["stack_script"] = module
    specification.loader.exec_module(module)
    module.ACTIONS["undo"]["per_target_per_hour"] = module.ACTIONS["undo"]["per_hour"] = faults
    found = []
    with tempfile.TemporaryDirectory() as folder, Notices() as webhook:
        address = f"http://127.0.0.1:{webhook.server_address[1]}/"
        stack = module.Stack(Path(folder), step_seconds=0.1, fault_at=None, webhook=address)
        with stack.running():
            deadline = time.monotonic() + WAIT_SECONDS
            while len(stack.query("probe_training_step > 100")) < 2:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            for _ in range(faults):
                time.sleep(random.uniform(2.0, 4.0))
                begin = time.monotonic()
                stack.fault.touch()
                found.append(webhook.wait("TrainingLossNaN", "firing", begin) - begin)
                webhook.wait("TrainingLossNaN", "resolved", begin)
    return found


def train() -> None:
    """Train as many steps as each line of the standard input says, and answer by the seconds."""
    import torch
    from _gpt import Training

    from probe.pytorch import TrainerMon

    torch.set_num_threads(1)
    training = Training(layers=4, width=128, tokens=64)
    monitor = TrainerMon({"format": "prometheus", "wg_distribution": True, "step_interval": 10})
    monitor.set_monitor(training.model, 1, training.optimizer)
    for line in sys.stdin:
        begin = time.perf_counter()
        for _ in range(int(line)):
            monitor.log(loss=1.0)
            training.step()
        print(time.perf_counter() - begin, flush=True)
    os._exit(0)


class Scraper:
    """Thread that scrapes once a second while it is switched on."""

    def __init__(self, address: str) -> None:
        self._address, self.on, self.scrapes = address, threading.Event(), 0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self.on.wait()
            with urlopen(self._address) as answer:
                assert b"probe_training_loss" in answer.read()
            self.scrapes += 1
            time.sleep(1.0)


@contextmanager
def process(*command: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Process that ends with the block."""
    own = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
    with subprocess.Popen([sys.executable, *command], stdin=-1, stdout=-1, stderr=-3, text=True, env=own) as started:
        try:
            yield started
        finally:
            started.kill()


def scrape_samples(rounds: int, block: int) -> tuple[Array, int]:
    """Logarithms of the ratio of a scraped block to one that is not, and the number of scrapes."""
    with tempfile.TemporaryDirectory() as folder:
        own = {"PROBE_PROGRESS_DIR": f"{folder}/progress", "MONITOR_OUTPUT_DIR": f"{folder}/output"}
        program = ("-c", "from probe.cli import main; main()", "exporter", "--port", "0", "--no-gpu")
        with process(__file__, "--train", **own) as training, process(*program, **own) as exporter:
            assert training.stdin is not None
            assert training.stdout is not None
            assert exporter.stdout is not None
            address = exporter.stdout.readline().split()[-1]

            def seconds() -> float:
                print(block, file=training.stdin, flush=True)
                return float(training.stdout.readline())  # type: ignore[union-attr]

            for _ in range(5):
                seconds()
            scraper, ratios = Scraper(address), []
            for _ in range(rounds):
                took = {}
                for scraped in random.sample((True, False), 2):
                    (scraper.on.set if scraped else scraper.on.clear)()
                    took[scraped] = seconds()
                ratios.append(np.log(took[True] / took[False]))
    return np.array(ratios), scraper.scrapes


def main() -> None:
    """Measure, publish, and exit with 1 if an aim is missed."""
    parser = arguments(__doc__, rounds=200)
    parser.add_argument("--block", type=int, default=50, help="steps of a block")
    parser.add_argument("--train", action="store_true", help="train as standard input says")
    args = parser.parse_args()
    if args.train:
        return train()
    notices = notice_seconds(FAULTS)
    ratios, scrapes = scrape_samples(args.rounds, args.block)
    ratio, low, high = interval(lambda found: np.median(found, axis=-1), ratios)
    cost = f"{100 * ratio:+.2f} % ({100 * low:+.2f} to {100 * high:+.2f}): {verdict(SCRAPE_AIM, low, high)}"
    worst = f"{np.median(notices):.1f} s (at most {max(notices):.1f} s): {verdict(NOTICE_AIM, max(notices))}"
    publish(
        "From a fault to its notice, and the cost of a scrape",
        [
            table(
                ["", "figure and aim"],
                [
                    [f"from a NaN to the webhook, aim {NOTICE_AIM:g} s", worst],
                    [f"a step is longer if scraped every second, aim {100 * SCRAPE_AIM:g} %", cost],
                ],
            ),
            (
                f"{len(notices)} faults in a training on two ranks, with the shipped rules and routes. {args.rounds} "
                f"pairs of blocks of {args.block} steps, {scrapes} scrapes; the median and its 95 % interval."
            ),
        ],
        args.output,
    )
    return sys.exit(max(notices) > NOTICE_AIM or verdict(SCRAPE_AIM, low, high) == "MISSED")


if __name__ == "__main__":
    main()
