"""Ray in place of the processes of this machine, on the same pieces of a run; the start of either is measured apart.

Every rank of a packed or unpacked run is judged by the default rules. Ray's cluster is one of this machine, started for
each turn.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from _process_tree import run
from _quiet import take_turns
from _report import arguments, interval, publish, table, verdict

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.simulated_run import ParallelSizes, SimulatedRun

MOST_LONGER = 1.15
"""Aim: time with Ray, as a multiple of that with processes."""


def turn(root: str, engine: str, processes: int, most_bytes: int) -> None:
    """Judge a run, and print seconds to start, seconds to judge, and the number of pieces and rows."""
    from _piece_work import judge, nothing

    from probe.core.analysis.engines import engine_of, read_each
    from probe.core.analysis.pieces import by_ranks
    from probe.core.storage.directories import last_run
    from probe.core.storage.problems import Problems

    problems = Problems()
    recorded = last_run(Path(root), problems)
    pieces = by_ranks(recorded, None, most_bytes, least=4 * processes)
    begun = time.perf_counter()
    with engine_of(engine, processes) as used:
        list(used.each(nothing, pieces[: 2 * processes]))
        started = time.perf_counter()
        rows = sum(read_each(used, judge, pieces, problems))
        ended = time.perf_counter()
    if problems.lines():
        sys.exit("\n".join(problems.lines()))
    print(json.dumps([started - begun, ended - started, len(pieces), rows]))


def main() -> None:
    if sys.argv[1:2] == ["turn"]:
        turn(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
        return
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of 1,000 ranks")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--piece-megabytes", type=float, default=8.0)
    args = parser.parse_args()
    sizes = ParallelSizes(dp=max(2, round(25 * args.scale)), tp=4, pp=10)
    simulated = SimulatedRun(sizes, None, 0, steps=100)
    found: dict[str, list[list[float]]] = {"local": [], "ray": []}
    environ = dict(os.environ) | {"RAY_USAGE_STATS_ENABLED": "0"}
    environ.pop("RAY_ADDRESS", None)
    with tempfile.TemporaryDirectory(prefix="probe-engines-") as directory:
        simulated.write(Path(directory), processes=2)

        def measure(engine: str) -> float:
            bytes_ = str(int(args.piece_megabytes * 2**20))
            command = [sys.executable, __file__, "turn", directory, engine, str(args.processes), bytes_]
            found[engine].append(json.loads(run(command, environ).output.splitlines()[-1]))
            print(engine, found[engine][-1], file=sys.stderr, flush=True)
            return found[engine][-1][1]

        rounds = take_turns({name: lambda name=name: measure(name) for name in found}, args.rounds)  # type: ignore[misc]
    if len({(row[2], row[3]) for rows in found.values() for row in rows}) > 1:
        sys.exit(f"different pieces or rows: {found}")
    seconds = np.array(rounds.seconds)
    ratio, low, high = interval(lambda x: np.median(x[..., 1] / x[..., 0], axis=-1), seconds)
    starts = [f"{np.median([row[0] for row in rows]):.1f} s" for rows in found.values()]
    middle = [f"{value:.1f} s" for value in np.median(seconds, axis=0)]
    verdict_ = verdict(MOST_LONGER, low, high)
    lines = [
        ["start", *starts, "", ""],
        ["work", *middle, f"{ratio:.2f} ({low:.2f} to {high:.2f})", f"{MOST_LONGER}: {verdict_}"],
    ]
    note = (
        f"{sizes.ranks:,} ranks, {simulated.row_count:,} rows, {found['ray'][0][2]:.0f} pieces, {args.processes} "
        f"processes or CPUs; {rounds.disturbed} of {args.rounds} rounds disturbed."
    )
    publish(
        "Ray against local processes", [note, table(["", "local", "Ray", "ratio", "aim"], lines)], args.output, "ray"
    )
    if verdict_ == "MISSED":
        sys.exit(1)


if __name__ == "__main__":
    main()
