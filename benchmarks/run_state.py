"""Cost of the numbers of a run on the training thread, and of alerts and heartbeats that nobody receives.

    python benchmarks/run_state.py [--rounds 1000] [--only refused] [--block 2]

Calls are timed in loops. For faults of the network, two processes train the same model in turns, block by block; one
sends alerts and heartbeats to an address with the fault, the other sends none. Then they change roles, so that the
difference between the processes themselves cancels. A loss is NaN now and then, so that there is something to send.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from _quiet import busy_elsewhere
from _report import Array, arguments, interval, publish, table, verdict

CALLS, LOOPS, STEPS = 20_000, 15, 500
LOG_AIM, PROGRESS_AIM, FAULT_AIM = 20e-6, 1e-6, 0.001
BAD_EVERY = 25
"""Every so many steps the loss is NaN."""
ROOT = Path(__file__).resolve().parents[1]


# Calls on the training thread.


def seconds_of(call: Callable[[], object], step: Callable[[], object] | None = None) -> float:
    """Median seconds of a call: one in each of ``STEPS`` steps, or of loops without steps."""
    each, found = (CALLS, []) if step is None else (1, [])
    for _ in range(LOOPS if step is None else STEPS):
        if step is not None:
            step()
        begin = time.perf_counter()
        for _ in range(each):
            call()
        found.append((time.perf_counter() - begin) / each)
    return float(np.median(found))


def call_rows() -> list[list[str]]:
    """Rows of the table of calls."""
    import torch

    from probe.core.run_state.progress import Progress
    from probe.pytorch import TrainerMon

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loss, large, rows = torch.tensor(1.0), torch.ones(512, 512), []

    def step() -> None:
        for _ in range(3):
            torch.mm(large, large)
        optimizer.step()

    with tempfile.TemporaryDirectory() as folder:
        os.environ["MONITOR_OUTPUT_DIR"] = folder
        with TrainerMon({"format": "csv", "alert": {"rules": []}}) as monitor:
            monitor.set_monitor(model, 1, optimizer)
            calls: dict[str, tuple[Callable[[], object], float]] = {
                "`log` of a number": (lambda: monitor.log(loss=1.0), LOG_AIM),
                "`log` of a tensor": (lambda: monitor.log(loss=loss), LOG_AIM),
                "`log` of five tensors": (lambda: monitor.log(a=loss, b=loss, c=loss, d=loss, e=loss), LOG_AIM),
            }
            for name, (call, aim) in calls.items():
                rows.append(call_row(f"{name}, once in a step", seconds_of(call, step), aim))
                rows.append(call_row(f"{name}, in a loop", seconds_of(call), aim))
        progress = Progress(Path(folder), 0, 1, "benchmark")
        marks: dict[str, tuple[Callable[[], object], float]] = {
            "progress: end of a step": (lambda: progress.step(1), PROGRESS_AIM),
            "progress: a promise": (lambda: progress.promise(10.0), PROGRESS_AIM),
            "progress: begin and end of a phase": (
                lambda: (progress.enter("data"), progress.leave()),
                2 * PROGRESS_AIM,
            ),
        }
        for name, (call, aim) in marks.items():
            rows.append(call_row(name, seconds_of(call), aim))
        progress.close()
    return rows


def call_row(name: str, seconds: float, aim: float) -> list[str]:
    return [name, f"{1e6 * seconds:.2g} us, aim {1e6 * aim:.0f} us: {verdict(aim, seconds)}"]


# Faults of the network.


def answer(status: str, body: bytes = b"", more: str = "") -> Callable[[socket.socket], None]:
    """Answer each request in the same way, and close."""

    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{more}\r\n"
        connection.sendall(head.encode() + body)

    return serve


def black_hole(connection: socket.socket) -> None:
    """Read and never answer."""
    while connection.recv(65536):
        pass


def drip(connection: socket.socket) -> None:
    """Answer a byte at a time, for ever."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        connection.sendall(b"x")
        time.sleep(0.02)


FAULTS: dict[str, Callable[[socket.socket], None] | None] = {
    "refused": None,
    "black hole": black_hole,
    "slow drip": drip,
    "429 with a time": answer("429 Too Many Requests", more="Retry-After: 1\r\n"),
    "429 without a time": answer("429 Too Many Requests"),
    "500": answer("500 Internal Server Error"),
    "200 with an error code": answer("200 OK", b'{"code": 19021, "msg": "no"}'),
    "garbage": lambda connection: connection.sendall(b"\0garbage\xff" * 100),
}
"""Behaviours of the server by name; None: nobody listens."""


def serve(fault: str) -> None:
    """Serve until standard input ends; print the port."""
    behave = FAULTS[fault]
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    if behave is None:
        listening.close()
    else:
        threading.Thread(target=accept, args=(listening, behave), daemon=True).start()
    sys.stdin.read()
    os._exit(0)


def accept(listening: socket.socket, behave: Callable[[socket.socket], None]) -> None:
    """Serve each connection on a thread of its own."""

    def one(connection: socket.socket) -> None:
        with suppress(OSError), connection:
            behave(connection)

    while True:
        threading.Thread(target=one, args=(listening.accept()[0],), daemon=True).start()


def train(folder: str) -> None:
    """Train as asked on standard input: ``attach CONFIGURATION`` or ``block STEPS``, answered by the seconds."""
    import torch
    from _gpt import Training

    from probe.pytorch import TrainerMon

    torch.set_num_threads(1)
    os.environ["MONITOR_OUTPUT_DIR"] = folder
    training, monitor, done = Training(layers=2, width=128, tokens=64), None, 0
    for line in sys.stdin:
        command, _, argument = line.partition(" ")
        begin = time.perf_counter()
        if command == "attach":
            if monitor is not None:
                monitor.stop()
            monitor = TrainerMon(json.loads(argument))
            monitor.set_monitor(training.model, 1, training.optimizer)
        elif monitor is not None:
            for _ in range(int(argument)):
                done += 1
                monitor.log(loss=float("nan") if done % BAD_EVERY == 0 else 1.0, grad_norm=1.0)
                training.step()
        print(time.perf_counter() - begin, flush=True)
    os._exit(0)


class Worker:
    """Process that trains in turns."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def do(self, command: str, argument: object) -> float:
        """Return the seconds that the command took."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(command, argument, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())


@contextmanager
def process(*options: str) -> Iterator[subprocess.Popen[str]]:
    """Process of this script, which ends with its standard input."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, *options]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=environment, stderr=-3) as started:
        try:
            yield started
        finally:
            started.kill()


def configuration(address: str | None) -> dict[str, Any]:
    """Configuration with alerts and heartbeats to ``address``; None: without."""
    config: dict[str, Any] = {"format": "csv", "step_interval": 10**9, "run": {"enable": True}}
    if address is not None:
        channels = [{"channel": name, "args": {"url": f"{address}/hook/{name}"}} for name in ("http", "feishu")]
        config |= {"alert": {"channels": channels, "group_seconds": 0.5}}
        config["run"] |= {"server": address}
    return config


def fault_samples(fault: str, args: argparse.Namespace, folder: Path) -> tuple[Array, float]:
    """Logarithms of the ratio of two blocks, the first with alerts: pairs x (first process sends, second sends); and
    the cores that were busy meanwhile, of which training takes one."""
    with (
        process("--serve", fault) as server,
        process("--train", str(folder / "a")) as one,
        process("--train", str(folder / "b")) as two,
    ):
        assert server.stdout is not None
        address, workers = f"http://127.0.0.1:{int(server.stdout.readline())}", [Worker(one), Worker(two)]
        columns, busy, began = [], busy_elsewhere(), time.perf_counter()
        for sends in (0, 1):
            for number, worker in enumerate(workers):
                worker.do("attach", json.dumps(configuration(address if number == sends else None)))
                worker.do("block", 50)
            ratios = []
            for turn in range(args.rounds):
                took = [0.0, 0.0]
                for number in (turn % 2, 1 - turn % 2):
                    took[number] = workers[number].do("block", args.block)
                ratios.append(np.log(took[sends] / took[1 - sends]))
            columns.append(ratios)
        cores = (busy_elsewhere() - busy) / (time.perf_counter() - began)
    return np.array(columns).T, cores


def fault_row(fault: str, samples: Array, cores: float) -> list[str]:
    ratio, low, high = interval(lambda found: np.median(found, axis=-2).mean(axis=-1), samples)
    text = f"{100 * ratio:+.2f} % ({100 * low:+.2f} to {100 * high:+.2f})"
    return [fault, f"{text}: {verdict(FAULT_AIM, low, high)}", f"{cores:.2f}"]


def main() -> None:
    """Measure, publish, and exit with 1 if an aim is missed."""
    parser = arguments(__doc__, rounds=1000)
    parser.add_argument("--block", type=int, default=2, help="steps of a turn")
    parser.add_argument("--only", choices=FAULTS, nargs="*", default=list(FAULTS), help="faults to measure")
    parser.add_argument("--serve", choices=FAULTS, help=argparse.SUPPRESS)
    parser.add_argument("--train", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve(args.serve)
    if args.train:
        return train(args.train)
    calls, faults = call_rows(), []
    for fault in args.only:
        with tempfile.TemporaryDirectory() as folder:
            faults.append(fault_row(fault, *fault_samples(fault, args, Path(folder))))
        print(*faults[-1], file=sys.stderr)
    publish(
        "Numbers of the run, and alerts that nobody receives",
        [
            table(["call", "time and aim"], calls),
            (
                "On the training thread, medians. Between two steps matrix products empty the processor's caches, "
                "as in training: the plain copy of a tensor of one element takes ten times as long there as in a loop."
            ),
            table(["fault of the network", f"a step takes longer by, aim {100 * FAULT_AIM:g} %", "busy cores"], faults),
            (
                f"Medians of {args.rounds} pairs of blocks of {args.block} steps in each role, in brackets the 95 % "
                f"interval; a loss is NaN in every {BAD_EVERY}th step. Training takes one core."
            ),
        ],
        args.output,
    )
    return sys.exit(any("MISSED" in row[1] for row in (*calls, *faults)))


if __name__ == "__main__":
    main()
