"""Program of a rank that shows numbers and progress, and does what it reads from standard input, a line each.

``python -m tests.services.metrics_rank FOLDER JOB RANK [progress]``
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import numpy as np

from probe.core.output.metrics.catalogue import Series
from probe.core.output.metrics.mapped_file import SUFFIX, MetricsFile, MetricsHeader
from probe.core.process_identity import process_state
from probe.core.run_state.progress import Progress
from tests.services.server_process import ROOT


def header(job: str, rank: int, **changes: Any) -> MetricsHeader:
    """The facts about this process as a rank."""
    pid = os.getpid()
    host, started = os.uname().nodename, process_state(pid).started
    return MetricsHeader(pid=pid, started=started, job=job, rank=rank, ranks=8, host=host)._replace(**changes)


def written(folder: Path, job: str, rank: int, values: dict[tuple[str, ...], float], **changes: Any) -> MetricsFile:
    """A file of a rank with some series, each a metric and the values of its labels."""
    facts = header(job, rank, **changes)
    file = MetricsFile(folder / f"rank{rank}-{facts.pid}-{facts.started}{SUFFIX}", facts)
    file.store([Series(name, tuple(labels)) for name, *labels in values], np.array(list(values.values())))
    return file


class StartedRank:
    """A rank in a process of its own."""

    def __init__(self, folder: Path, job: str, rank: int, *options: str, before: tuple[str, ...] = ()) -> None:
        command = [*before, sys.executable, "-m", "tests.services.metrics_rank", str(folder), job, str(rank), *options]
        self.process = Popen(
            command, stdin=PIPE, stdout=PIPE, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        self.pid = int(self._answer())

    def do(self, *command: Any) -> None:
        """Have it do something, and wait until it has."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        assert self._answer() == "done"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextmanager
def rank(folder: Path, job: str, number: int = 0, *options: str, before: tuple[str, ...] = ()) -> Iterator[StartedRank]:
    """A rank that is killed at the end."""
    found = StartedRank(folder, job, number, *options, before=before)
    with found.process:
        try:
            yield found
        finally:
            found.process.kill()


def main() -> None:
    folder, job, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    marks = Progress(folder, number, 8, job) if "progress" in sys.argv else None
    file = MetricsFile(folder / f"rank{number}-{os.getpid()}{SUFFIX}", header(job, number))
    print(os.getpid(), flush=True)  # noqa: T201 - its answer
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        if name == "store":
            series = [Series(metric, tuple(labels)) for metric, labels, _ in arguments]
            file.store(series, np.array([float(value) for *_, value in arguments]))
        elif name == "end":
            file.close()
            if marks is not None:
                marks.close()
        elif marks is not None:
            getattr(marks, name)(*arguments)
        print("done", flush=True)  # noqa: T201 - its answer


if __name__ == "__main__":
    main()
