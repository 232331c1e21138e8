"""How long does each query of the dashboards take in Prometheus, over an hour of 1,000 ranks?

Prometheus gets an hour of the series that the dashboards ask for, from a recorded training that is repeated over all
ranks; of tensors, those of one rank and one signal of the others. Each query is sent as Grafana sends it. The first
answer, with nothing read yet, and the best of the others are listed; the slower of the two counts. Exits with 1 if
one takes longer than a second. On a busy machine the seconds of the processor are closer to the truth.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from _report import publish, table, verdict

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.resources.recorded_prometheus import prometheus_with
from tests.resources.recording import BEGIN, Recording
from tests.resources.shown_dashboard import ShownDashboard

NAMES = ("cluster", "job", "layers", "ranks")
MOST_SECONDS = 1.0
SHOWN = 12
"""Slowest queries that are listed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1_000)
    parser.add_argument("--seconds", type=int, default=3_600, help="length of the recording, at most two hours")
    parser.add_argument("--every", type=int, default=15, help="seconds between two samples")
    parser.add_argument("--rounds", type=int, default=3, help="times that each query is sent")
    parser.add_argument("--output", type=Path, help="the folder for the result as a file")
    args = parser.parse_args()
    recording = Recording(args.ranks, args.seconds, args.every, ranks_of_node=8, fully=1)
    took: list[tuple[float, float, float, str, str, int]] = []
    with TemporaryDirectory() as folder, prometheus_with(recording, Path(folder)) as server:
        series = int(server.at('count({__name__!=""})', recording.end)[0]["value"][1])
        for name in NAMES:
            began = time.perf_counter()
            board = ShownDashboard(name, server, BEGIN, recording.end)
            variables = time.perf_counter() - began
            took.append((variables, variables, math.nan, name, f"all {len(board.choices)} variables", 0))
            for target in board.targets():
                seconds, used = [], server.processor_seconds()
                for _ in range(args.rounds):
                    began = time.perf_counter()
                    answer = board.answer(target)
                    seconds.append(time.perf_counter() - began)
                assert answer.has_data, target.expression
                used = (server.processor_seconds() - used) / args.rounds
                best = min(seconds[1:], default=0)
                took.append((seconds[0], best, used, name, target.panel["title"], len(answer.series)))
    took.sort(key=lambda each: -max(each[:2]))
    slowest = max(took[0][:2])
    rows = [
        [f"{name}: {title}", str(count or ""), f"{first:.3f}", f"{best:.3f}", f"{used:.3f}"]
        for first, best, used, name, title, count in took[:SHOWN]
    ]
    note = f"{len(took)} queries over {args.seconds // 60} minutes of {args.ranks:,} ranks: {series:,} series, "
    note += f"a sample every {args.every} s. Seconds of the slowest: {slowest:.2f}, aim {MOST_SECONDS:g}: "
    note += f"{verdict(MOST_SECONDS, slowest)}."
    header = ["query", "series", "seconds, first", "seconds, again", "of the processor"]
    publish("The queries of the dashboards", [note, table(header, rows)], args.output)
    raise SystemExit(0 if slowest <= MOST_SECONDS else 1)


if __name__ == "__main__":
    main()
