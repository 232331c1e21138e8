"""Speed of the conversions to SQLite and TensorBoard in rows a second, for probe and for the existing tool.

The csv sink writes the files. Each conversion runs in processes of its own, from the command to the last file; the
existing tool gets a part of the input, as it would take an hour for all of it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np
from _monitors import EXISTING_TOOL, has_existing_tool
from _report import arguments, publish, table

from probe.core.output.sinks import SINKS
from probe.core.output.sinks.context import SinkContext
from probe.core.records import Batch, Key, Snapshot

OPS = ("min", "max", "mean", "norm", "nans")
KINDS = ("actv", "grad_unreduced", "grad_reduced", "param_origin")

MEASURED = """
import json, resource, subprocess, sys, time
begin = time.perf_counter()
ran = subprocess.run(json.loads(sys.argv[1]), capture_output=True, text=True)
seconds = time.perf_counter() - begin
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([seconds, used.ru_utime + used.ru_stime, used.ru_maxrss, ran.returncode, ran.stderr[-2000:]]))
"""
EXISTING_CURVES = """
import sys
from msprobe.pytorch.monitor.csv2tb import csv2tensorboard_by_step
if __name__ == "__main__":
    csv2tensorboard_by_step(sys.argv[1], process_num=int(sys.argv[2]), output_dirpath=sys.argv[3])
"""


class Cost(NamedTuple):
    """Cost of a conversion."""

    seconds: float
    processor_seconds: float
    """Processor time of all its processes, which other programs hardly change."""
    mebibytes: float
    """Peak memory of the largest of its processes."""


def write_input(root: Path, ranks: int, steps: int, rows: int, steps_a_file: int) -> int:
    """Write the files of ``ranks`` with ``rows`` rows a step, over all kinds; return the number of rows."""
    each = rows // len(KINDS)
    keys = {
        kind: tuple(
            Key(f"layers.{i // 12}.self_attention.part{i % 12}", "output" * (kind == "actv")) for i in range(each)
        )
        for kind in KINDS
    }
    shapes, dtypes = ((256, 1024),) * each, ("torch.float32",) * each
    generator = np.random.default_rng(0)
    for rank in range(ranks):
        directory = root / f"Dec03_21-34-40-rank{rank}-{rank:08x}"
        sink = SINKS["csv"](SinkContext(directory=directory, root=root, rank=rank, steps_per_file=steps_a_file))
        sink.open()
        for step in range(steps):
            batches = []
            for kind in KINDS:
                columns = {name: np.abs(generator.normal(1, 0.1, each)) for name in ("min", "max", "sum", "sumsq")}
                columns["nans"] = np.zeros(each)
                order, inner = np.arange(each), kind == "actv"
                batches.append(Batch(kind, step, keys[kind], shapes, dtypes, order, columns, micro_stepped=inner))
            sink.write(Snapshot(step, rank, 1.7e9 + step, batches, OPS))
    return ranks * steps * each * len(KINDS)


def measured(command: Sequence[str | Path]) -> Cost:
    """Run ``command``, which must succeed."""
    wrapped = [sys.executable, "-c", MEASURED, json.dumps([str(word) for word in command])]
    seconds, processor_seconds, kibibytes, code, errors = json.loads(subprocess.check_output(wrapped, text=True))
    if code:
        sys.exit(f"{command} ended with {code}: {errors}")
    return Cost(seconds, processor_seconds, kibibytes / 1024)


def check_rows(database: Path, query: str, expected: int) -> None:
    """Check that the database holds every row."""
    with closing(sqlite3.connect(database)) as opened:
        found = sum(number for (number,) in opened.execute(query))
    if found != expected:
        sys.exit(f"{database}: expected {expected} rows, found {found}")


def our_database(root: Path, target: Path, processes: int, rows: int) -> Cost:
    cost = measured([sys.executable, "-m", "probe", "csv2db", root, "-j", str(processes), "-o", target])
    counts = " UNION ALL ".join(f"SELECT count(*) FROM {kind}_rows" for kind in KINDS)
    check_rows(target / "monitor_metrics.db", counts, rows)
    return cost


def our_curves(root: Path, target: Path, processes: int, _: int) -> Cost:
    return measured([sys.executable, "-m", "probe", "csv2tb", root, "-j", str(processes), "-o", target])


def existing_database(root: Path, target: Path, processes: int, rows: int) -> Cost:
    target.mkdir()
    command = [Path(sys.executable).with_name("msprobe"), "data2db", "--db", target, "--data", root]
    command += ["--format", "monitor", "--micro_step", "false", "--process_num", str(processes)]
    cost = measured(command)
    check_rows(next(target.glob("*.db")), "SELECT count(*) FROM trend_data", rows)
    return cost


def existing_curves(root: Path, target: Path, processes: int, _: int) -> Cost:
    script = root.parent / "curves.py"
    script.write_text(EXISTING_CURVES)
    return measured([sys.executable, script, root, str(processes), target])


def line(what: str, rows: int, processes: int, cost: Cost, against: Cost | None = None) -> list[str]:
    """Line of the table."""
    ratio = f"{against.seconds / cost.seconds:.1f}" if against else ""
    whole = f"{cost.mebibytes * (processes + 1):,.0f} MiB"
    seconds, of_processor = f"{cost.seconds:.1f} s", f"{cost.processor_seconds:.1f} s"
    cells = [what, f"{rows:,}", seconds, of_processor, f"{rows / cost.seconds:,.0f}", ratio, whole]
    print(" | ".join(cells), file=sys.stderr, flush=True)
    return cells


def measure(args: argparse.Namespace, scratch: Path) -> list[list[str]]:
    """Lines of the table."""
    part, whole, processes = scratch / "part", scratch / "whole", args.processes
    lines = []
    if args.part > 1:
        rows = write_input(whole, args.ranks, args.steps, args.rows, args.steps_a_file)
        lines.append(line("`csv2db`, all", rows, processes, our_database(whole, scratch / "all", processes, rows)))
        shutil.rmtree(whole)
    rows = write_input(part, args.ranks, max(1, args.steps // args.part), args.rows, args.steps_a_file)
    contests = {"csv2db": (our_database, existing_database), "csv2tb": (our_curves, existing_curves)}
    for name, (ours, existing) in contests.items():
        theirs = existing(part, scratch / f"existing_{name}", processes, rows) if has_existing_tool() else None
        lines.append(line(f"`{name}`", rows, processes, ours(part, scratch / name, processes, rows), theirs))
        if theirs:
            lines.append(line(f"{EXISTING_TOOL}, the same", rows, processes, theirs))
    return lines


def main() -> None:
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rows", type=int, default=1000, help="rows a step, over all kinds")
    parser.add_argument("--steps-a-file", type=int, default=20, help="step_count_per_record of the input")
    parser.add_argument("--part", type=int, default=20, help="the existing tool converts one of so many parts; 1: all")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        lines = measure(args, Path(directory))
    header = ["", "rows", "time", "of processors", "rows a second", "times as fast", "memory at most"]
    note = (
        f"{args.ranks} ranks x {args.steps} steps x {args.rows} rows of {len(OPS)} numbers, {args.steps_a_file} steps "
        f"a file; {args.processes} processes. Memory is that of the largest process, as if all were as large."
    )
    publish("What conversions take", [note, table(header, lines)], args.output)


if __name__ == "__main__":
    main()
