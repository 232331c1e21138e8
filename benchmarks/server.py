"""Heartbeat server under load: 1,000 clients, one heartbeat a second each; with --kill, killed in the middle.

Every client has a connection of its own and waits for each answer. Exits with 1 if an acknowledged message is missing,
is there twice, or if the server takes more than one core or 200 MiB.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from _report import publish, table, verdict

MOST_MEMORY = 200.0
"""Largest memory of the server in MiB."""
PORT_FILE = "heartbeats"


@dataclass
class Load:
    """Outcome of one run of all clients."""

    acknowledged: list[tuple[int, int]] = field(default_factory=list)
    """Rank and number of each message that the server has confirmed."""
    seconds: list[float] = field(default_factory=list)
    """Time from each request to its answer."""
    failed: int = 0


def started(database: Path) -> tuple[subprocess.Popen[str], str]:
    """Start the server; return its process and address."""
    command = [sys.executable, "-m", "probe", "serve", "--port", "0", "--database", str(database)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    return process, process.stdout.readline().split()[-1]


def request(rank: int, number: int) -> bytes:
    """HTTP request of one heartbeat, as the client of probe sends it."""
    values = {"loss": 2.0 + 1 / (number + 1), "step": number, "grad_norm": 1.5, "learning_rate": 3e-4}
    values |= {"step_seconds": 1.0, "throughput": 41_234.5, "phase": "train", "loss_scale": 65536.0}
    message = {"number": number, "kind": "train_metrics", "time": time.time(), "promise": 60.0, "values": values}
    origin = {"job": "benchmark", "rank": rank, "world": 1000, "run": f"run-{rank}", "launch": "one"}
    content = json.dumps({**origin, "late": False, "messages": [message]}).encode()
    lines = "POST /v1/heartbeats HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"
    return "\r\n".join([*lines, f"Content-Length: {len(content)}", "", ""]).encode() + content


async def client(address: str, rank: int, seconds: float, load: Load) -> None:
    """Send one heartbeat a second; a failed one is not sent again."""
    place = urlsplit(address)
    loop = asyncio.get_running_loop()
    begin = loop.time() + random.random()
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    for number in range(int(seconds)):
        await asyncio.sleep(max(begin + number - loop.time(), 0))
        sent = loop.time()
        try:
            writer.write(request(rank, number))
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            answer = json.loads(await reader.readexactly(length))
        except (OSError, EOFError):
            load.failed += 1
            break
        if head.startswith(b"HTTP/1.1 200") and answer["stored"] == 1:
            load.acknowledged.append((rank, number))
            load.seconds.append(loop.time() - sent)
        else:
            load.failed += 1
    writer.close()


async def all_clients(address: str, clients: int, seconds: float, load: Load, killed: int | None) -> None:
    """Run all clients; kill the process ``killed`` in the middle."""
    tasks = [asyncio.ensure_future(client(address, rank, seconds, load)) for rank in range(clients)]
    if killed is not None:
        await asyncio.sleep(seconds / 2)
        os.kill(killed, signal.SIGKILL)
    await asyncio.gather(*tasks, return_exceptions=True)


def processor_seconds(process: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def largest_memory(process: int) -> float:
    """Peak of resident memory in MiB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def stored(database: Path) -> list[tuple[int, int]]:
    """Rank and number of each message in the database, read by SQLite alone."""
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute("SELECT rank, number FROM messages JOIN sources ON sources.id = source").fetchall()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--kill", action="store_true", help="kill the server in the middle, and start it again")
    parser.add_argument("--output", type=Path, help="folder, or .md file, for the result")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        database = Path(directory) / PORT_FILE
        process, address = started(database)
        load, began, used = Load(), time.perf_counter(), processor_seconds(process.pid)
        asyncio.run(all_clients(address, args.clients, args.seconds, load, process.pid if args.kill else None))
        cores = memory = float("nan")
        if not args.kill:
            cores = (processor_seconds(process.pid) - used) / (time.perf_counter() - began)
            memory = largest_memory(process.pid)
        else:
            process.wait()
            process, _ = started(database)
        process.send_signal(signal.SIGTERM)
        process.wait()
        found = stored(database)
    with suppress(ValueError):
        cores = round(cores, 3)
    lost, twice = len(set(load.acknowledged) - set(found)), len(found) - len(set(found))
    latency = np.quantile(np.array(load.seconds) * 1e3, [0.5, 0.99, 1.0])
    rows = [
        ["acknowledged", f"{len(load.acknowledged):,}"],
        ["stored", f"{len(found):,}"],
        ["acknowledged and lost", str(lost)],
        ["stored twice", str(twice)],
        ["requests without acknowledgement", f"{load.failed:,}"],
        ["median, 99th percentile and longest answer", ", ".join(f"{value:.0f} ms" for value in latency)],
        ["cores of the server", "not measured" if args.kill else f"{cores:.2f}, aim 1: {verdict(1, cores)}"],
        [
            "its largest memory",
            "not measured" if args.kill else f"{memory:.0f} MiB, aim {MOST_MEMORY:g}: {verdict(MOST_MEMORY, memory)}",
        ],
    ]
    note = f"{args.clients:,} clients, a heartbeat a second each, for {args.seconds:g} s"
    note += ", SIGKILL in the middle." if args.kill else "."
    title = "The heartbeat server, killed" if args.kill else "The heartbeat server"
    publish(title, [note, table(["", ""], rows)], args.output)
    good = not lost and not twice and (args.kill or (cores <= 1 and memory <= MOST_MEMORY))
    raise SystemExit(0 if good and (args.kill or len(found) == len(load.acknowledged)) else 1)


if __name__ == "__main__":
    main()
