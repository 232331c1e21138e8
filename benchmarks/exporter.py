"""The exporter of a node: time of a scrape, and 1,000 ranks behind 125 nodes under a real Prometheus.

All nodes are served by one process, so that it and Prometheus share the machine. Exits with 1 if an aim is missed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _exporter_nodes import RANKS, SERIES, SimulatedNode
from _report import arguments, publish, table, verdict

MOST_SECONDS = 0.01
"""Aim for the median scrape of one node."""
LONGEST = 1.0
"""Aim for the 99th percentile of scrapes by Prometheus, in seconds."""
INTERVAL = 5
WARM_SECONDS = 6 * INTERVAL
"""Time in which Prometheus makes the series, before scrapes count."""
CONFIGURATION = """\
global: {{scrape_interval: {interval}s, scrape_timeout: {interval}s}}
scrape_configs:
  - job_name: nodes
    file_sd_configs: [{{files: [{targets}]}}]
"""


class Served(NamedTuple):
    """Outcome of the scrapes by Prometheus."""

    scrapes: int
    missed: int
    series: float
    seconds: list[float]
    cores: tuple[float, float]
    """Cores that the exporters and Prometheus took."""


async def scrape_times(rounds: int) -> list[float]:
    """Seconds of scrapes of one node whose ranks train."""
    with tempfile.TemporaryDirectory() as directory:
        node = SimulatedNode(Path(directory) / "node", 0, 1)
        page = node.page()
        seconds = []
        for step in range(rounds):
            node.step(step)
            began = time.perf_counter()
            text, _ = await page.text("")
            seconds.append(time.perf_counter() - began)
        assert text.count(b"\nprobe_tensor_norm{") == RANKS * (SERIES - 4)
        return seconds[1:]


def by_prometheus(program: str, nodes: int, seconds: float) -> Served:
    """Scrape simulated nodes by Prometheus."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        (folder / "nodes").mkdir()
        script = str(Path(__file__).with_name("_exporter_nodes.py"))
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        exporters = subprocess.Popen(
            [sys.executable, script, str(folder / "nodes"), str(nodes)], stdout=subprocess.PIPE, env=environment
        )
        assert exporters.stdout is not None
        address = f"127.0.0.1:{int(exporters.stdout.readline())}"
        server, port = started(program, folder, address, nodes)
        try:
            wait_until_ready(port)
            time.sleep(WARM_SECONDS)
            before = [processor_seconds(each.pid) for each in (exporters, server)]
            began = time.perf_counter()
            time.sleep(seconds)
            passed = time.perf_counter() - began
            used = [processor_seconds(each.pid) - b for each, b in zip((exporters, server), before, strict=True)]
            return outcome(port, nodes, seconds, (used[0] / passed, used[1] / passed))
        finally:
            for each in (server, exporters):
                each.send_signal(signal.SIGTERM)
                each.wait()


def started(program: str, folder: Path, address: str, nodes: int) -> tuple[subprocess.Popen[bytes], int]:
    """Start Prometheus; return its process and port."""
    targets = [
        {"targets": [address], "labels": {"__metrics_path__": f"/node/{n}", "instance": f"node{n}"}}
        for n in range(nodes)
    ]
    (folder / "targets.json").write_text(json.dumps(targets))
    text = CONFIGURATION.format(interval=INTERVAL, targets=folder / "targets.json")
    (folder / "prometheus.yml").write_text(text)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = f"--config.file={folder}/prometheus.yml --storage.tsdb.path={folder}/data --log.level=error"
    command = [program, *options.split(), f"--web.listen-address=127.0.0.1:{port}"]
    return subprocess.Popen(command, env={**os.environ, "GOMAXPROCS": "2"}), port


def wait_until_ready(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5):
                return
        except OSError as error:
            if time.monotonic() > deadline:
                raise TimeoutError("Prometheus does not become ready") from error
            time.sleep(0.1)


def outcome(port: int, nodes: int, seconds: float, cores: tuple[float, float]) -> Served:
    """Ask Prometheus for its scrapes in the last seconds."""
    window = f"[{int(seconds)}s]"
    up = [value for each in query(port, f'up{{job="nodes"}}{window}') for value in each["values"]]
    durations = query(port, f'scrape_duration_seconds{{job="nodes"}}{window}')
    times = [[float(at) for at, _ in each["values"]] for each in durations]
    gaps = sum(round((b - a) / INTERVAL) - 1 for row in times for a, b in pairwise(row))
    failed = sum(value != "1" for _, value in up) + gaps + (nodes - len(times)) * int(seconds // INTERVAL)
    (series,) = query(port, f'sum(max_over_time(scrape_samples_scraped{{job="nodes"}}{window}))')
    took = [float(value) for each in durations for _, value in each["values"]]
    return Served(len(up), failed, float(series["value"][1]), took, cores)


def query(port: int, text: str) -> Any:
    address = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': text})}"
    with urllib.request.urlopen(address, timeout=60) as answer:
        return json.load(answer)["data"]["result"]


def processor_seconds(process: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = arguments(__doc__, rounds=500)
    parser.add_argument("--nodes", type=int, default=125, help="nodes of eight ranks")
    parser.add_argument("--seconds", type=float, default=120.0, help="time for which Prometheus scrapes them")
    parser.add_argument("--prometheus", default="prometheus", help="the program")
    args = parser.parse_args()
    took = np.quantile(asyncio.run(scrape_times(args.rounds)), [0.5, 0.99])
    served = by_prometheus(args.prometheus, args.nodes, args.seconds)
    late = float(np.quantile(served.seconds, 0.99))
    median = f"{1e3 * took[0]:.1f} ms, aim {1e3 * MOST_SECONDS:g} ms: {verdict(MOST_SECONDS, took[0])}"
    rows = [
        [f"median scrape of {RANKS} ranks of {SERIES} series", median],
        ["its 99th percentile", f"{1e3 * took[1]:.1f} ms"],
        [f"series behind {args.nodes} nodes", f"{served.series:,.0f}"],
        [f"scrapes by Prometheus, every {INTERVAL} s", f"{served.scrapes:,}"],
        ["missed", f"{served.missed}, aim 0: {verdict(0, served.missed)}"],
        ["99th percentile", f"{late:.3f} s, aim {LONGEST:g} s: {verdict(LONGEST, late)}"],
        ["cores of all exporters, which also train", f"{served.cores[0]:.2f}"],
        ["cores of Prometheus", f"{served.cores[1]:.2f}"],
    ]  # fmt: skip
    note = f"{args.nodes * RANKS:,} simulated ranks that end a step a second; one process serves all of them. "
    note += f"Scrapes count after {WARM_SECONDS} s, in which Prometheus makes the series."
    publish("The exporter of a node", [note, table(["", ""], rows)], args.output, "prometheus-client")
    good = took[0] <= MOST_SECONDS and not served.missed and late <= LONGEST
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
