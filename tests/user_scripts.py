"""Scripts of users, each in a process of its own: forked from one that has imported what they import."""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import md5
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple, TextIO

from probe.cli import VERBS
from tests.forks import ROOT, Forked, ForkServer

SECONDS = 600.0
"""After which a script is given up."""

COMMANDS = (*sorted({path.partition(":")[0] for path in VERBS.values()}), "probe.cli.usage")
"""What verbs of ``probe`` import. Without what reads the language of the environment at its import."""
WORKERS = (*COMMANDS, "duckdb", "concurrent.futures.process", "multiprocessing.spawn")
"""What processes that read a run in pieces import."""
TORCH = (
    *(*COMMANDS, "torch._dynamo", "torch._inductor.compile_fx", "torch.distributed.fsdp", "torch.distributed.run"),
    *("probe.pytorch", "httpx", "tests.pytorch.toys", "tests.pytorch.watching"),
)
"""What scripts import where PyTorch trains. Without DuckDB, which prints what it has not freed when a process ends that
was forked after its import."""
TRAINERS = (*TORCH, "transformers.trainer", "accelerate", "lightning.pytorch")
"""The same where a library trains with PyTorch."""
RANKS = (
    *("torch.distributed.fsdp", "torch.distributed.pipelining", "torch.distributed.tensor.parallel", "torch._dynamo"),
    *("torch.profiler", "duckdb", "pytest", "probe.pytorch", "probe.core.analysis.merge", "tests.distributed.worker"),
)
"""What most tests of ranks import."""
MINDSPORE = ("mindspore", "probe.mindspore")
"""The same where MindSpore trains."""
BASES = (RANKS, TORCH, COMMANDS)
"""What processes that import more as well are forked with."""
QUEUED = {"MS_DEV_HOST_BLOCKING_RUN": "0"}
"""Variables with which operators of MindSpore run behind the program, as those of users do."""

_servers: dict[tuple[object, ...], ForkServer] = {}
"""Those started so far, by number and what they import: they end with this process."""
_turn = threading.Lock()
shared: Path | None = None
"""Folder of the addresses of servers that processes of tests side by side have together; none if there is one such."""


def forks(*modules: str, number: int = 0, path: tuple[str, ...] = ()) -> ForkServer:
    """The process that has imported ``modules``, for all tests of this process.

    Args:
        modules: those of packages that are not installed are left out.
        number: of one of several such processes. The names of a set have another order in each.
        path: folders of further packages, which come first.
    """
    before = next((each for each in BASES if modules[: len(each)] == each and modules != each), ())
    base = forks(*before, number=number) if before else None
    key = (number, path, *modules)
    with _turn:
        if key not in _servers:
            folders = os.pathsep.join([*path, str(ROOT)])
            own = {**os.environ, "PYTHONPATH": folders, "OMP_NUM_THREADS": "1", "GLOG_v": "4"}
            more = modules[len(before) :]
            installed = [each for each in more if find_spec(each.partition(".")[0])]
            _servers[key] = ForkServer(installed, own, base, shared and shared / md5(repr(key).encode()).hexdigest())
            atexit.register(_servers[key].close)
        return _servers[key]


class Ended(NamedTuple):
    """What a process has left."""

    returncode: int
    stdout: str
    stderr: str


def ran(server: ForkServer, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Ended:
    """The end of a process that ``server`` forks, which runs as ``python`` with these arguments."""
    with TemporaryFile("w+", encoding="utf-8") as stdout, TemporaryFile("w+", encoding="utf-8") as stderr:
        process = server.start(
            arguments, environment=environment, cwd=str(folder), stdout=stdout.fileno(), stderr=stderr.fileno()
        )
        try:
            code = process.wait(SECONDS)
        finally:
            process.kill()
        stdout.seek(0)
        stderr.seek(0)
        return Ended(code, stdout.read(), stderr.read())


class Running:
    """A script that runs."""

    def __init__(self, process: Forked, stdout: TextIO, errors: Path) -> None:
        self.stdout, self._process, self._errors = stdout, process, errors

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code of a script that has ended."""
        return self._process.returncode

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

    def send_signal(self, number: int) -> None:
        """Sends a signal to it."""
        self._process.send_signal(number)

    def wait(self) -> int:
        """The exit code, once there is one."""
        return self._process.wait(SECONDS)

    def end(self) -> str:
        """What it prints until it ends by itself."""
        timer = threading.Timer(SECONDS, os.kill, (self._process.pid, signal.SIGKILL))
        timer.start()
        try:
            printed = self.stdout.read()
        finally:
            timer.cancel()
        self.wait()
        return printed


@contextmanager
def running(text: str, folder: Path, *arguments: str, modules: Sequence[str], **environment: str) -> Iterator[Running]:
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
