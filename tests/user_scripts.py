"""Scripts of users, each in a process of its own: forked from one that has imported what they import."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from tests.forks import ROOT, Forked, ForkServer

SECONDS = 100.0
"""After which a script is given up."""

_servers: dict[tuple[object, ...], ForkServer] = {}
"""Those started so far, by number and what they import: they end with this process."""


def forks(*modules: str, number: int = 0) -> ForkServer:
    """The process that has imported ``modules``, for all tests of this process.

    Args:
        number: of one of several such processes. The names of a set have another order in each.
    """
    key = (number, *modules)
    if key not in _servers:
        own = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOG_v": "4"}
        _servers[key] = ForkServer(modules, own)
        atexit.register(_servers[key].close)
    return _servers[key]


class Running:
    """A script that runs."""

    def __init__(self, process: Forked, stdout: TextIO, errors: Path) -> None:
        self.process, self.stdout, self._errors = process, stdout, errors

    @property
    def returncode(self) -> int | None:
        """The exit code of a script that has ended."""
        return self.process.returncode

    @property
    def errors(self) -> str:
        """What it has written to the standard error output so far."""
        return self._errors.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, line: str) -> None:
        """Reads what it prints until it prints ``line``."""
        for printed in self.stdout:
            if printed.strip() == line:
                return
        raise AssertionError(self.errors)

    def end(self, seconds: float = SECONDS) -> str:
        """What it prints until it ends by itself."""
        timer = threading.Timer(seconds, self.process.kill)
        timer.start()
        printed = self.stdout.read()
        self.process.wait(seconds)
        timer.cancel()
        return printed


@contextmanager
def running(
    text: str, folder: Path, *arguments: str, modules: Sequence[str], **environment: str
) -> Iterator[Running]:
    """A script, killed at the latest when the block ends.

    Args:
        text: of the script.
        folder: for the script and its errors.
        arguments: of the script.
        modules: those that the process has imported from which it is forked.
        environment: what else is set for it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    script, errors = folder / "script.py", folder / "errors"
    script.write_text(text, encoding="utf-8")
    reading, writing = os.pipe()
    own = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
    with os.fdopen(reading, encoding="utf-8") as stdout, errors.open("w") as stderr:
        try:
            process = forks(*modules).start(
                [str(script), *arguments], environment=own, cwd=str(folder), stdout=writing, stderr=stderr.fileno()
            )
        finally:
            os.close(writing)
        try:
            yield Running(process, stdout, errors)
        finally:
            process.kill()
            process.wait()
