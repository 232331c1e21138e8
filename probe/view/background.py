"""Analyses and comparisons, each in a process of its own, of low priority.

python -m probe.view.background analyse PLACE DIRECTORY
python -m probe.view.background compare PLACE DIRECTORY PLACE DIRECTORY
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from probe.core.storage.files import MOST_JSON
from probe.core.storage.layout import MICRO_STEP

State = Literal["running", "done", "failed"]
MOST_WAITING = 100
"""Tasks that wait at most; the oldest is dropped."""
MOST_KEPT = 200
"""Results that are kept at most; the oldest is dropped."""
NICE = 15
"""Priority of a task: beside a program that takes all of a processor it gets about 3 % of it."""
MEMORY = "256MB"
"""Memory that DuckDB may use for an analysis."""


@dataclass
class TaskResult:
    """Result of a task, as far as there is one."""

    state: State
    answer: Any = None
    """The JSON that the task has printed last, of an earlier version of the files while it runs again."""
    error: str = ""
    version: Hashable = None
    """Version of the files that ``answer`` is about."""
    began: float = 0.0
    ended: float = 0.0
    """Seconds on the monotonic clock."""


class BackgroundTasks:
    """Tasks, one process at a time, the newest first.

    Args:
        changed: called with the key of a task that has ended, on the thread of the tasks.
    """

    def __init__(self, changed: Callable[[Hashable], None]) -> None:
        self._changed = changed
        self._condition = threading.Condition()
        self._waiting: dict[Hashable, tuple[Sequence[str], Hashable]] = {}
        self._results: dict[Hashable, TaskResult] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="probe-view-tasks", daemon=True)
        self._thread.start()

    def result(self, key: Hashable) -> TaskResult | None:
        """Return the result of a task; None if it was not asked for."""
        with self._condition:
            return self._results.get(key)

    def ask(self, key: Hashable, arguments: Sequence[str], version: Hashable) -> TaskResult:
        """Begin a task unless it was done for ``version`` of the files, is under way, or ended a moment ago.

        A task that took a second is done again after 20 seconds at the earliest.

        Returns:
            What there is of it.
        """
        with self._condition:
            found = self._results.get(key)
            if found is not None and (found.version == version or found.state == "running"):
                return found
            if found is not None and time.monotonic() < found.ended + max(5.0, 20 * (found.ended - found.began)):
                return found
            if found is None:
                found = self._results[key] = TaskResult("running")
                while len(self._results) > MOST_KEPT:
                    self._results.pop(next(iter(self._results)))
            found.state = "running"
            self._waiting[key] = arguments, version
            while len(self._waiting) > MOST_WAITING:
                dropped = next(iter(self._waiting))
                del self._waiting[dropped]
                self._results.pop(dropped, None)
            self._condition.notify()
            return found

    def close(self) -> None:
        """End the process that runs."""
        with self._condition:
            self._ended = True
            self._waiting.clear()
            if self._process is not None:
                with suppress(OSError):
                    self._process.kill()
            self._condition.notify()
        self._thread.join(5)

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._waiting and not self._ended:
                    self._condition.wait()
                if self._ended:
                    return
                key = next(reversed(self._waiting))
                arguments, version = self._waiting.pop(key)
                found = self._results.setdefault(key, TaskResult("running"))
            began = time.monotonic()
            answer, error = self._answer(arguments)
            with self._condition:
                found.state = "failed" if error else "done"
                found.answer = found.answer if error else answer
                found.error, found.version, found.began, found.ended = error, version, began, time.monotonic()
                if self._ended:
                    return
            self._changed(key)

    def _answer(self, arguments: Sequence[str]) -> tuple[Any, str]:
        """Run a task; return what it printed, or its error."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as wrong:
            command = [sys.executable, "-m", "probe.view.background", *arguments]
            with self._condition:
                if self._ended:
                    return None, "ended"
                self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=wrong)  # noqa: S603 - our own
            code = self._process.wait()
            with self._condition:
                self._process = None
            out.seek(0)
            data = out.read(MOST_JSON + 1)
            if code == 0 and len(data) <= MOST_JSON:
                with suppress(ValueError):
                    return json.loads(data), ""
            wrong.seek(0)
            text = wrong.read(4096).decode("utf-8", "replace").strip()
            return None, (text.splitlines() or [f"the process ended with code {code}"])[-1]


def analysis_arguments(place: str, directory: str) -> list[str]:
    """Return the arguments of an analysis."""
    return ["analyse", place, directory]


def comparison_arguments(one: tuple[str, str], other: tuple[str, str]) -> list[str]:
    """Return the arguments of a comparison of two runs, each with its place and the name of one of its directories."""
    return ["compare", *one, *other]


def main(arguments: Sequence[str]) -> None:
    """Do a task and print its result as JSON."""
    _yield_processor()
    kind, *names = arguments
    if kind == "analyse":
        print(json.dumps(_analysed(*names), allow_nan=False))  # noqa: T201 - its parent reads it
    else:
        print(json.dumps(_compared(*names), allow_nan=False))  # noqa: T201


def _yield_processor() -> None:
    """Run with a lower priority than the server, which has a lower one than training."""
    os.nice(max(0, NICE - os.nice(0)))


def _analysed(place: str, directory: str) -> dict[str, Any]:
    from probe.core.analysis.diagnosis.analyse import analyse
    from probe.core.analysis.diagnosis.export import as_json
    from probe.core.storage.duckdb_reader import connect
    from probe.core.storage.location import located

    return as_json(analyse(located(place), connection=connect(MEMORY, threads=1), directory=directory))


def _compared(one: str, one_directory: str, other: str, other_directory: str) -> dict[str, Any]:
    from probe.core.analysis.compare.compare import compare
    from probe.core.analysis.compare.explain import about, sentence, verdict
    from probe.core.storage.location import located
    from probe.core.storage.run_directory import plain

    found = compare(located(one), located(other), directories=(one_directory, other_directory))
    differences = [
        {
            "sentence": sentence(row),
            "signal": row.signal,
            "row": row.name,
            "row_b": row.name_b,
            "stage": row.stage,
            "op": row.numbers[0].op,
            "rank": row.rank,
            "step": row.step,
            MICRO_STEP: row.micro_step if row.micro_stepped else None,
            "left": row.numbers[0].a,
            "right": row.numbers[0].b,
            "relative": row.numbers[0].difference,
        }
        for row in found.first
    ]
    return plain(  # type: ignore[no-any-return]
        {
            "same": found.same,
            "agrees": found.agrees,
            "first_difference": differences[0] if differences else None,
            "differences": differences,
            "verdict": verdict(found),
            "about": list(about(found)),
            "problems": found.problems,
        }
    )


if __name__ == "__main__":
    main(sys.argv[1:])
