"""Runs of 1,000 to 10,000 simulated ranks: packing, first cause, report and comparison, their time and memory.

``--only`` chooses sections: ``processes`` (two processes against one), ``causes`` (each planted fault among 10,000
ranks), ``packed`` (a packed run against an unpacked one), ``requests`` (to S3, for the report of a packed run).
``--scale 0.01`` makes everything a hundred times smaller, to see whether it works.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from _process_tree import TreeCost, probe, run
from _quiet import take_turns
from _report import arguments, interval, publish, table, verdict

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.simulated_run import KINDS, ParallelSizes, SimulatedRun

RANKS, STEPS, ROWS = 1_000, 100, 500
"""Of the runs of 10^8 rows: two signals of so many rows a step."""
MANY = ParallelSizes(dp=125, tp=8, pp=10)
"""Of the runs in which faults are planted."""
LEAST_RATIO, MOST_WORKER, MOST_DRIVER = 1.8, 1024, 512
MOST_CAUSE_SECONDS, MOST_CAUSE_DRIVER = 600, 1024
OPENING, ONE_ROW, BYTES, REQUESTS = 100, 20, 0.5, 3
"""Aims: times as fast, the fraction of the bytes, and requests for an object."""

OPENED = """
import json, sys, time
from pathlib import Path
from probe.core.storage.directories import last_run
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.problems import Problems
problems, begun = Problems(), time.perf_counter()
run = last_run(Path(sys.argv[1]), problems)
with Rows(run.directories, problems) as rows:
    opened = time.perf_counter()
    query = f"SELECT step, rank, norm FROM {rows.view('actv')} WHERE name = ? ORDER BY step, rank"
    found = rows.connection.execute(query, [sys.argv[2]]).fetchall()
    read = time.perf_counter()
assert not problems.lines(), problems.lines()
print(json.dumps([opened - begun, read - opened, len(found), round(sum(row[2] for row in found), 6)]))
"""
"""Program that opens a run, and reads one row at all steps of all ranks."""


def smaller(sizes: ParallelSizes, scale: float) -> ParallelSizes:
    """Return ``sizes`` with fewer replicas."""
    return sizes._replace(dp=max(2, round(sizes.dp * scale)))


def written(run: SimulatedRun, folder: Path) -> Path:
    """Write a run unless it is there."""
    if not folder.exists():
        partial = folder.with_name(f".{folder.name}")
        shutil.rmtree(partial, ignore_errors=True)
        run.write(partial, processes=2)
        partial.rename(folder)
    return folder


def packed(folder: Path) -> Path:
    """Pack a run unless that is done."""
    out = folder.with_name(f"{folder.name} packed")
    if not out.exists():
        probe("pack", folder, "-o", out, "-j", "2")
    return out


def large(args: Namespace, seed: int) -> SimulatedRun:
    """The run of 10^8 rows."""
    steps = max(20, round(STEPS * args.scale))
    sizes = ParallelSizes(dp=25, tp=4, pp=10)
    return SimulatedRun(smaller(sizes, args.scale * STEPS / steps), None, seed, steps, ROWS, steps_per_file=100)


# Two processes against one.


def processes(args: Namespace, scratch: Path) -> Iterator[str]:
    """Time and memory of each command with one process and with several."""
    run, other = large(args, 0), large(args, 1)
    one, two = written(run, scratch / "one"), written(other, scratch / "two")
    commands: dict[str, Callable[[str], TreeCost]] = {
        "pack": lambda j, unpacked=one: _pack(unpacked, scratch / "out", j)
    }
    if args.commands != ["pack"]:
        one, two = packed(one), packed(two)
    commands |= {
        "anomalies": lambda j: probe("anomalies", one, "--json", "--engine", "local", "-j", j),
        "report": lambda j: probe("report", one, "-o", scratch / "page.html", "--engine", "local", "-j", j),
        "compare": lambda j: probe("compare", one, two, "--engine", "local", "-j", j, codes=(1,)),
    }
    lines = [_contest(name, commands[name], args) for name in args.commands]
    header = [
        "command",
        "one process",
        f"{args.processes} processes",
        "times as fast",
        "aim",
        "driver",
        "worker",
        "aim",
    ]
    yield (
        f"{run.sizes.ranks:,} ranks, {run.row_count:,} rows in Parquet; all but `pack` read the packed run. One "
        f"process has one core (DuckDB would take all), and counts as a worker. Aims: "
        f"{LEAST_RATIO} times as fast, a worker below {MOST_WORKER} MiB, the driver below {MOST_DRIVER} MiB."
    )
    yield table(header, lines)


def _pack(folder: Path, out: Path, j: str) -> TreeCost:
    shutil.rmtree(out, ignore_errors=True)
    return probe("pack", folder, "-o", out, "-j", j)


def _contest(name: str, command: Callable[[str], TreeCost], args: Namespace) -> list[str]:
    """Line of a command."""
    costs: list[TreeCost] = []

    def turn(j: str) -> float:
        with one_core() if j == "1" else nullcontext():
            costs.append(command(j))
        print(f"{name} -j {j}: {costs[-1][:3]}", file=sys.stderr, flush=True)
        return costs[-1].seconds

    several = str(args.processes)
    rounds = take_turns({"1": lambda: turn("1"), several: lambda: turn(several)}, args.rounds)
    seconds = np.array(rounds.seconds)
    ratio, low, high = interval(lambda x: np.median(x[..., 0] / x[..., 1], axis=-1), seconds)
    one, two = np.median(seconds, axis=0)
    driver = max(cost.driver for cost in costs if cost.worker)
    worker = max(cost.worker or cost.driver for cost in costs)
    disturbed = f" ({rounds.disturbed} disturbed)" if rounds.disturbed else ""
    memory = max(driver / MOST_DRIVER, worker / MOST_WORKER)
    return [
        f"`probe {name}`",
        f"{one:.1f} s",
        f"{two:.1f} s{disturbed}",
        f"{ratio:.2f} ({low:.2f} to {high:.2f})",
        verdict(1 / LEAST_RATIO, 1 / high, 1 / low),
        f"{driver:,.0f} MiB",
        f"{worker:,.0f} MiB",
        verdict(1.0, memory),
    ]


@contextmanager
def one_core() -> Iterator[None]:
    """Keep this process, and what it starts, on one core."""
    every = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(every)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, every)


# First causes.


def causes(args: Namespace, scratch: Path) -> Iterator[str]:
    """First cause of each planted fault, and of one after which every rank is NaN."""
    sizes, lines = smaller(MANY, args.scale), []
    asked = [(kind, False) for kind in args.faults] + [(kind, True) for kind in args.faults if kind == "overflow"]
    for n, (kind, aftermath) in enumerate(asked):
        run = SimulatedRun(sizes, kind, n, resumed=0.01, dead=0.001, aftermath=aftermath)
        begun = time.perf_counter()
        folder = written(run, scratch / f"{kind}{' and NaN' * aftermath}")
        took = time.perf_counter() - begun
        cost = probe("anomalies", folder, "--json", "--engine", "local", "-j", str(args.processes), codes=(1,))
        right = "yes" if is_right(run, json.loads(cost.output)) else "NO"
        fits = max(cost.seconds / MOST_CAUSE_SECONDS, cost.driver / MOST_CAUSE_DRIVER)
        name = kind + ", then every rank NaN" * aftermath
        lines.append([name, right, f"{cost.seconds:.0f} s", f"{cost.driver:,.0f} MiB", f"{cost.worker:,.0f} MiB"])
        lines[-1] += ["MISSED" if right == "NO" else verdict(1.0, fits), f"{took:.0f} s"]
        print(" | ".join(lines[-1]), file=sys.stderr, flush=True)
        if args.keep is None:
            shutil.rmtree(folder)
    yield (
        f"{sizes.ranks:,} ranks ({sizes}), 20 steps of 100 rows of two signals (three for a frozen parameter), one "
        f"in a hundred resumed, one in a thousand ended early; {args.processes} processes, files of the ranks as they "
        f"are. Right: kind, place, ranks and step, and nothing else may have begun it. Aim: right within "
        f"{MOST_CAUSE_SECONDS} s, driver below {MOST_CAUSE_DRIVER} MiB."
    )
    yield table(["fault", "right", "time", "driver", "worker", "aim", "writing it"], lines)


def is_right(run: SimulatedRun, found: dict[str, Any]) -> bool:
    """Return whether the JSON of ``probe anomalies`` names the planted fault."""
    expected, diagnosis = run.expected, found["diagnosis"]
    if expected is None or diagnosis is None:
        return expected is diagnosis is None
    first = diagnosis["first"]
    return (
        diagnosis["kind"] == expected.kind
        and first["began"] == expected.step
        and tuple(diagnosis["ranks"]) == expected.ranks
        and f" {expected.place}" in diagnosis["text"]
        and not diagnosis["ambiguous_with"]
        and not found["others"]
    )


# Packed against unpacked.


def compare_packed(args: Namespace, scratch: Path) -> Iterator[str]:
    """Opening, one row over all steps and ranks, and bytes."""
    sizes = smaller(ParallelSizes(dp=25, tp=4, pp=10), args.scale)
    run = SimulatedRun(sizes, None, 0, steps_per_file=1)
    folder = written(run, scratch / "a file a step")
    out, name = packed(folder), f"{run.module(0, 1)}.output"
    found: dict[Path, list[list[float]]] = {folder: [], out: []}

    def turn(place: Path) -> float:
        cost = run_python(OPENED, place, name)
        found[place].append(json.loads(cost.output))
        print(place, found[place][-1], file=sys.stderr, flush=True)
        return cost.seconds

    take_turns({str(place): lambda place=place: turn(place) for place in found}, args.rounds)  # type: ignore[misc]
    unpacked, small = (np.array(rows) for rows in found.values())
    if not (unpacked[:, 2:] == small[0, 2:]).all():
        sys.exit(f"different rows: {unpacked[:, 2:]} and {small[:, 2:]}")
    lines = []
    for n, (what, aim) in enumerate({"opening": OPENING, "one row, all steps and ranks": ONE_ROW}.items()):
        pairs = np.stack([unpacked[:, n], small[:, n]], axis=1)
        ratio, low, high = interval(lambda x: np.median(x[..., 0] / x[..., 1], axis=-1), pairs)
        middle = [f"{1e3 * np.median(side):,.0f} ms" for side in pairs.T]
        verdict_ = verdict(1 / aim, 1 / high, 1 / low)
        lines.append([what, *middle, f"{ratio:.1f} times as fast ({low:.1f} to {high:.1f})", f"{aim}: {verdict_}"])
    before, after = _bytes(folder), _bytes(out)
    share = after / before
    sizes_ = [f"{before / 1e6:,.0f} MB", f"{after / 1e6:,.0f} MB", f"{share:.2f} of them"]
    lines.append(["bytes", *sizes_, f"{BYTES}: {verdict(BYTES, share)}"])
    yield f"{run.sizes.ranks:,} ranks, {run.steps} steps, a Parquet file a signal and step: {run.row_count:,} rows."
    yield table(["", "unpacked", "packed", "", "aim"], lines)


def run_python(program: str, *words: str | Path) -> TreeCost:
    return run([sys.executable, "-c", program, *words])


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


# Requests to S3.


def requests(args: Namespace, scratch: Path) -> Iterator[str]:
    """Requests to a server of objects for the report of a packed run."""
    from tests import faulty_proxy, object_storage

    run = SimulatedRun(smaller(MANY, args.scale), "overflow", 1)
    out = packed(written(run, scratch / "overflow of all"))
    with object_storage.seaweedfs(scratch / "objects") as server, faulty_proxy.FaultyProxy(server.url) as proxy:
        url, own = server.put(out, "packed"), {**os.environ, **object_storage.environment(proxy.url)}
        cost = probe("report", url, "-o", scratch / "page.html", "-j", str(args.processes), environ=own)  # all of it
        counts, listings = proxy.of_objects(), proxy.listings()
    most = max(counts.values(), default=0)
    lines = [
        ["objects", f"{len(counts):,}", ""],
        ["requests", f"{sum(counts.values()):,}", ""],
        ["requests for an object, at most", f"{most}", f"{REQUESTS}: {verdict(REQUESTS, most)}"],
        ["listings", f"{len(listings)}", f"1: {verdict(1, len(listings))}"],
        ["time", f"{cost.seconds:.0f} s", ""],
    ]
    yield f"`probe report` of a packed run of {run.sizes.ranks:,} ranks on SeaweedFS, on this machine."
    yield table(["", "", "aim"], lines)


SECTIONS = {"processes": processes, "causes": causes, "packed": compare_packed, "requests": requests}
TITLES = {
    "processes": "Two processes against one",
    "causes": "First cause among 10,000 ranks",
    "packed": "A packed run against an unpacked one",
    "requests": "Requests to S3 for the report of a packed run",
}
COMMANDS = ("pack", "anomalies", "report", "compare")


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the rows and ranks")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS), help="of `processes`")
    parser.add_argument("--faults", nargs="+", choices=KINDS, default=list(KINDS), help="of `causes`")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="folder for the input, which is left there and used if it is there")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="probe-scale-") as directory:
        scratch = args.keep or Path(directory)
        scratch.mkdir(parents=True, exist_ok=True)
        paragraphs = []
        for name in args.only:
            paragraphs += [f"*{TITLES[name]}.*", *SECTIONS[name](args, scratch)]
    publish("Past one machine", paragraphs, args.output, framework="duckdb")
    if any("MISSED" in paragraph for paragraph in paragraphs):
        sys.exit(1)


if __name__ == "__main__":
    main()
