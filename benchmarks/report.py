"""Time and memory of ``probe report`` for a run of many layers, steps and ranks.

The input is made here, in the layout of the CSV sink (or as Parquet files); the page is then made in a process of its
own, whose peak memory is printed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path

import numpy as np
from _report import arguments, publish, table

OPS = ("min", "max", "mean", "norm", "nans")
MEASURED = """
import resource, sys, time
from pathlib import Path
from probe.core.analysis.report.write import write_report
begun = time.perf_counter()
written = write_report(Path(sys.argv[1]), Path(sys.argv[2]))
seconds = time.perf_counter() - begun
print(written.rows, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, written.size / 1e6)
"""


def write_input(root: Path, args: Namespace) -> None:
    """Write the files of all ranks: ``args.signals`` signals of ``args.layers`` rows in each step."""
    import duckdb

    connection = duckdb.connect()
    connection.execute("SET threads = 1")
    for rank in range(args.ranks):
        directory = root / f"Dec03_21-34-40-rank{rank}-{rank:08x}"
        directory.mkdir(parents=True)
        for n in range(args.signals):
            for first in range(0, args.steps, args.steps_per_file):
                last = min(first + args.steps_per_file, args.steps) - 1
                path = directory / f"{_signal(n)}_{first}-{first + args.steps_per_file - 1}.{args.format}"
                connection.execute(_query(path, args, (rank * 31 + n) * 7 + first, first, last))


def _signal(n: int) -> str:
    return ("grad_reduced", "grad_unreduced", "param_origin", "exp_avg", "exp_avg_sq")[n % 5] + "_more" * (n // 5)


def _query(path: Path, args: Namespace, seed: int, first: int, last: int) -> str:
    """Query for numbers that differ by layer, step and rank; in CSV files with six digits. DuckDB writes them fast."""
    size = f"exp(2 * sin(l * 0.7) + hash(l * 1000003 + s * 7 + {seed}) % 1000000 / 1e6)"
    ops = {"min": f"-{size}", "max": size, "mean": f"{size} / 1000", "norm": f"{size} * 30", "nans": "0"}
    whole = args.format == "parquet"
    numbers = ", ".join(f"{sql if whole or op == 'nans' else _digits(sql)} AS {op}" for op, sql in ops.items())
    options = "FORMAT parquet" if whole else "FORMAT csv, HEADER"
    return (
        f"COPY (SELECT 0 AS vpp_stage, 'layers.' || l || '.mlp.weight' AS name, s AS step, {numbers}, "
        f"'[1024, 1024]' AS shape, 'torch.float32' AS dtype FROM range({first}, {last + 1}) AS a(s), "
        f"range({args.layers}) AS b(l)) TO '{path}' ({options})"
    )


def _digits(sql: str) -> str:
    return f"printf('%.6g', {sql})::DOUBLE"


def main() -> None:
    """Make the input, then the page of it, ``--rounds`` times."""
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--layers", type=int, default=500)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--signals", type=int, default=1, help="signals of as many rows each")
    parser.add_argument("--steps-per-file", type=int, default=500)
    parser.add_argument("--format", choices=("csv", "parquet"), default="csv")
    parser.add_argument("--keep", type=Path, help="folder to put the input in and to leave it; used if it is there")
    args = parser.parse_args()
    root = args.keep or Path(tempfile.mkdtemp(prefix="probe-report-"))
    try:
        if not any(root.glob("*-rank*")):
            write_input(root, args)
        size = sum(path.stat().st_size for path in root.rglob("*.*")) / 1e9
        rows = [_measured(root, root / "report.html") for _ in range(args.rounds)]
    finally:
        if args.keep is None:
            shutil.rmtree(root)
    figures = [float(np.median(column)) for column in zip(*rows, strict=True)]
    line = (f"{figures[0]:,.0f}", f"{size:.2f}", f"{figures[1]:.0f}", f"{figures[0] / figures[1]:,.0f}")
    sizes = f"{args.layers} layers, {args.steps} steps, {args.ranks} ranks, {args.signals} signals"
    publish(
        f"Report of {sizes}, {args.format}",
        [
            table(
                ("rows", "input (GB)", "seconds", "rows a second", "peak memory (MiB)", "page (MB)"),
                [(*line, f"{figures[2]:.0f}", f"{figures[3]:.1f}")],
            )
        ],
        args.output,
        framework="duckdb",
    )


def _measured(root: Path, out: Path) -> list[float]:
    """Measure one page in a fresh process: rows, seconds, peak memory in MiB, size in MB."""
    begun = time.perf_counter()
    printed = subprocess.check_output([sys.executable, "-c", MEASURED, str(root), str(out)], text=True)
    print(f"{time.perf_counter() - begun:.1f} s with the start of Python", file=sys.stderr)
    return [float(word) for word in printed.split()]


if __name__ == "__main__":
    main()
