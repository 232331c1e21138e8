"""Analyses and comparisons, each in a process of its own, of low priority unless somebody waits for them.

python -m probe.view.background NICE FOLDERS analyse PLACE DIRECTORY
python -m probe.view.background NICE FOLDERS compare PLACE DIRECTORY PLACE DIRECTORY

NICE is its priority, FOLDERS a JSON list of the folders out of which no link is followed; an empty one for all.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal

from probe.core.alerting.redaction import describe_error
from probe.core.child_process import python_module
from probe.core.door import attempt
from probe.core.faults import Faults
from probe.core.language import message
from probe.core.storage.files import MOST_JSON, confine
from probe.core.worker import Worker

_log = logging.getLogger("probe.view")

MODULE = "probe.view.background"
PAUSE_SECONDS = 1.0
"""Pause after a failure of our own."""
MOST_ERROR = 4096
"""Bytes at the end of what a process writes to standard error, of which the last line is its error."""
State = Literal["running", "done", "failed"]
MOST_WAITING = 100
"""Tasks that wait at most; the oldest is dropped."""
MOST_KEPT = 200
"""Results that are kept at most; the oldest is dropped."""
WHERE = "tasks"
"""Place under which failures are counted."""
NICE = 15
"""Priority of a task: beside a program that takes all of a processor it gets about 3 % of it."""
MEMORY = "256MB"
"""Memory that DuckDB may use for an analysis."""


@dataclass(frozen=True)
class TaskResult:
    """Result of a task at one moment, as far as there is one."""

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
        folders: folders out of which tasks follow no link; none: they follow all.
        nice: priority of the tasks.
        clock: function that returns the seconds by which it is decided when a task may run again.
    """

    def __init__(
        self,
        changed: Callable[[Hashable], None],
        folders: Sequence[str] = (),
        nice: int = NICE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._changed, self._options, self._clock = changed, (str(nice), json.dumps(list(folders))), clock
        self._lock = threading.Condition()
        self._waiting: dict[Hashable, tuple[Sequence[str], Hashable]] = {}
        self._results: dict[Hashable, TaskResult] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._output: tuple[Hashable, BinaryIO] | None = None
        """Key of the task that runs, and what its process writes to standard error."""
        self._ended = False
        self._faults = Faults("the view goes on")
        self._worker = Worker("probe-view-tasks", WHERE, self._faults, look=self._look)

    def result(self, key: Hashable) -> TaskResult | None:
        """Return the result of a task; None if it was not asked for."""
        with self._lock:
            return self._results.get(key)

    @property
    def is_idle(self) -> bool:
        """True if no task waits or runs."""
        with self._lock:
            return not self._waiting and self._output is None

    def progress(self, key: Hashable) -> str:
        """Return the last line of a task about its progress; empty if it does not run, or has written none."""
        with self._lock:
            if self._output is None or self._output[0] != key:
                return ""
            return _last_line(self._output[1])

    def ask(self, key: Hashable, arguments: Sequence[str], version: Hashable) -> TaskResult:
        """Begin a task unless it was done for ``version`` of the files, is under way, or ended a moment ago.

        A task that took a second is done again after 20 seconds at the earliest.

        Returns:
            What there is of it.
        """
        with self._lock:
            found = self._results.get(key)
            if found is not None and (found.version == version or found.state == "running"):
                return found
            if found is not None and self._clock() < found.ended + max(5.0, 20 * (found.ended - found.began)):
                return found
            found = self._results[key] = replace(found or TaskResult("running"), state="running")
            while len(self._results) > MOST_KEPT:
                self._results.pop(next(iter(self._results)))
            self._waiting[key] = arguments, version
            while len(self._waiting) > MOST_WAITING:
                dropped = next(iter(self._waiting))
                del self._waiting[dropped]
                self._results.pop(dropped, None)
            self._worker.wake()
            return found

    def wait(self, key: Hashable, seconds: float) -> TaskResult:
        """Wait until a task has ended, or ``seconds`` have passed, or this object is closed; return what there is of
        it."""

        def is_over() -> bool:
            found = self._results.get(key)
            return found is None or found.state != "running" or self._ended

        with self._lock:
            self._lock.wait_for(is_over, seconds)
            return self._results.get(key) or TaskResult("running")

    def close(self) -> None:
        """End the process that runs."""
        with self._lock:
            self._ended = True
            self._waiting.clear()
            self._lock.notify_all()
            if self._process is not None:
                with suppress(OSError):
                    self._process.kill()
        self._worker.end()
        self._worker.join(5)

    def _look(self) -> float | None:
        """Do the newest task that waits, and keep its result; return 0 seconds if there was one."""
        with self._lock:
            if not self._waiting:
                return None
            key = next(reversed(self._waiting))
            arguments, version = self._waiting.pop(key)
            before = self._results.get(key)
        began = self._clock()
        answer, error, again = self._tried(key, arguments)
        version = None if again else version
        if error:
            answer = before.answer if before else None
        with self._lock:
            state: State = "failed" if error else "done"
            self._results[key] = TaskResult(state, answer, error, version, began, self._clock())
            self._lock.notify_all()
        if not self._ended:
            attempt(self._faults, WHERE, self._changed, key)
        return 0.0

    def _tried(self, key: Hashable, arguments: Sequence[str]) -> tuple[Any, str, bool]:
        """Run a task; return what it printed or its error, and whether it is worth another attempt as it is."""
        try:
            return *self._answer(key, arguments), False
        except Exception as error:  # noqa: BLE001 - whatever it is, the page shows it
            _log.warning("a task of the page could not be run", exc_info=True)
            return None, message("it could not be run: {reason}", reason=describe_error(error)), True

    def _answer(self, key: Hashable, arguments: Sequence[str]) -> tuple[Any, str]:
        """Run a task in a process; return what that printed, or its error.

        Raises:
            OSError: if there is no memory for a process, or no room for its output.
        """
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as wrong:
            command = python_module(MODULE, *self._options, *arguments)
            with self._lock:
                if self._ended:
                    return None, "ended"
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=wrong)  # noqa: S603 - our own
                self._process, self._output = process, (key, wrong)
            try:
                code = process.wait()
            finally:
                with self._lock:
                    self._process = self._output = None
            out.seek(0)
            data = out.read(MOST_JSON + 1)
            if code == 0 and len(data) <= MOST_JSON:
                with suppress(ValueError):
                    return json.loads(data), ""
            return None, (_last_line(wrong) if code else "") or _end_of(code)


def _last_line(file: BinaryIO) -> str:
    """Return the last line of a file that a process may be writing; it moves no position in it."""
    size = os.fstat(file.fileno()).st_size
    text = os.pread(file.fileno(), MOST_ERROR, max(0, size - MOST_ERROR)).decode("utf-8", "replace").strip()
    return (text.splitlines() or [""])[-1]


def _end_of(code: int) -> str:
    """Return how a process without a last word has ended."""
    if code >= 0:
        return message("the process ended with code {code}", code=code)
    return message("the process was ended by signal {number}, as for lack of memory", number=-code)


def analysis_arguments(place: str, directory: str) -> list[str]:
    """Return the arguments of an analysis."""
    return ["analyse", place, directory]


def comparison_arguments(one: tuple[str, str], other: tuple[str, str]) -> list[str]:
    """Return the arguments of a comparison of two runs, each with its place and the name of one of its directories."""
    return ["compare", *one, *other]


def main(arguments: Sequence[str]) -> None:
    """Do a task and print its result as JSON."""
    nice, folders, kind, *names = arguments
    os.nice(max(0, int(nice) - os.nice(0)))  # unless the priority of the server is lower
    if permitted := json.loads(folders):
        confine(map(Path, permitted))
    if kind == "analyse":
        print(json.dumps(_analysed(*names), allow_nan=False))  # noqa: T201 - its parent reads it
    else:
        print(json.dumps(_compared(*names), allow_nan=False))  # noqa: T201


def _analysed(place: str, directory: str) -> dict[str, Any]:
    from probe.core.analysis.diagnosis.analyse import analyse
    from probe.core.analysis.diagnosis.export import as_json
    from probe.core.analysis.report.page_verdict import page_verdict
    from probe.core.storage.duckdb_reader import connect
    from probe.core.storage.location import located

    connection = connect(MEMORY, threads=1)
    analysis = analyse(located(place), progress=_report, connection=connection, directory=directory)
    return {**as_json(analysis), **page_verdict(analysis)}


def _report(progress: str) -> None:
    """Write a line that the page shows while the task runs."""
    print(progress, file=sys.stderr, flush=True)  # noqa: T201 - its parent reads it


def _compared(one: str, one_directory: str, other: str, other_directory: str) -> dict[str, Any]:
    from probe.core.analysis.compare.compare import compare
    from probe.core.analysis.compare.explain import answer
    from probe.core.analysis.engines import engine_of
    from probe.core.storage.location import located

    with engine_of("local", 1, lambda done: _report(f"{done.done}/{done.total}")) as engine:
        directories = one_directory, other_directory
        return answer(compare(located(one), located(other), engine=engine, directories=directories))


if __name__ == "__main__":
    main(sys.argv[1:])
