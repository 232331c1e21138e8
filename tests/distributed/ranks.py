"""Processes that train together, kept for as many tests as want them: starting one takes longer than most tests.

What a test runs in them is a plain function of its own module::

    def train(steps: int) -> list[float]: ...

    def test_losses(two_ranks: Ranks) -> None:
        first, second = two_ranks.run(train, 3)
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests import user_scripts
from tests.forks import ROOT, Forked, ForkServer

SECONDS = 120.0
"""After which a call is given up, and the processes ended."""
GRACE = 10.0
"""How long the others may still take when one has raised: they may wait for it in a collective."""


class Ranks:
    """``size`` processes in one process group on gloo.

    Args:
        packages: folders of ``.venv/versions`` that come first on the path, such as ``deepspeed-0.16.9``.
        prepare: a module that each process has imported before the test's.
        alike: all are forked from one process, which alone imports what they need: then the names of a set have the
            same order in all.
        environment: what else is set for them.
    """

    worker = "tests.distributed.worker"
    """Module that each process runs."""

    def __init__(
        self,
        size: int,
        *,
        packages: Sequence[str] = (),
        prepare: str = "",
        alike: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.size, self._alike = size, alike
        self._versions = tuple(str(Path(sys.prefix) / "versions" / package) for package in packages)
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*self._versions, str(ROOT)]),
            "OMP_NUM_THREADS": "1",
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            **(environment or {}),
        }
        self._prepare = prepare
        self._processes: list[Forked] = []
        self._pipes: list[Connection] = []
        self._logs: TemporaryDirectory[str] | None = None

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        seconds: float = SECONDS,
        grace: float = GRACE,
        **kwargs: Any,
    ) -> list[Any]:
        """Call ``function`` on each rank and return the results.

        Raises:
            AssertionError: with every traceback and what the processes printed, if one raised, died or took too long.
        """
        answers = self.outcomes(function, *args, seconds=seconds, grace=grace, **kwargs)
        failed = {rank: answer[1] for rank, answer in enumerate(answers) if answer[0] != "returned"}
        assert not failed, "\n".join(f"rank {rank}: {what}\n{self._printed(rank)}" for rank, what in failed.items())
        return [value for _, value in answers]

    def outcomes(
        self,
        function: Callable[..., Any],
        *args: Any,
        seconds: float = SECONDS,
        grace: float = GRACE,
        **kwargs: Any,
    ) -> list[tuple[str, Any]]:
        """How the call ended on each rank: ``returned`` and the value, ``raised`` and the traceback, ``died`` and the
        exit code, or ``hung`` and the seconds. Unless all returned, the next call starts new processes."""
        if not self._processes:
            self._start()
        directory = os.environ.get("MONITOR_OUTPUT_DIR", "")
        call = pickle.dumps((function.__module__, function.__qualname__, args, kwargs, directory))
        for pipe in self._pipes:
            with suppress(OSError):  # died since the last call: reported below
                pipe.send_bytes(call)
        answers = self._collect(seconds, grace)
        for process, (outcome, _) in zip(self._processes, answers, strict=True):
            if outcome == "hung":
                process.send_signal(signal.SIGABRT)  # prints where it is
                process.wait()
        if any(outcome != "returned" for outcome, _ in answers):
            self._kill()
        return answers

    def close(self) -> None:
        """Ends the processes."""
        self._kill()
        if self._logs is not None:
            self._logs.cleanup()
            self._logs = None

    def _collect(self, seconds: float, grace: float) -> list[tuple[str, Any]]:
        answers: dict[int, tuple[str, Any]] = {}
        end = time.monotonic() + seconds
        while len(answers) < self.size:
            waiting = {self._pipes[rank]: rank for rank in range(self.size) if rank not in answers}
            ready = wait(list(waiting), max(0.0, end - time.monotonic()))
            if not ready:
                break
            for pipe in ready:
                rank = waiting[pipe]  # type: ignore[index]
                try:
                    answers[rank] = pickle.loads(pipe.recv_bytes())  # type: ignore[union-attr]
                except (EOFError, OSError):
                    answers[rank] = ("died", self._processes[rank].wait())
                if answers[rank][0] != "returned":
                    end = min(end, time.monotonic() + grace)
        return [answers.get(rank, ("hung", seconds)) for rank in range(self.size)]

    def _start(self) -> None:
        self._logs = self._logs or TemporaryDirectory()
        servers = self._servers()
        for rank in range(self.size):
            ours, theirs = Pipe()
            arguments = ["-m", self.worker, str(theirs.fileno())]
            environment = self._environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            with Path(self._logs.name, f"{rank}.log").open("ab") as log:
                self._processes.append(
                    servers[min(rank, len(servers) - 1)].start(
                        arguments,
                        environment=environment,
                        cwd=self._logs.name,
                        stdout=log.fileno(),
                        stderr=log.fileno(),
                        pass_fds=[theirs.fileno()],
                    )
                )
            theirs.close()
            self._pipes.append(ours)
        try:
            port = self._pipes[0].recv()
        except EOFError:
            raise AssertionError(f"rank 0 did not start\n{self._printed(0)}") from None
        for pipe in self._pipes[1:]:
            pipe.send(port)

    def _servers(self) -> list[ForkServer]:
        """One for the first rank and one for the others, unless all are to be alike: the names of a set have another
        order in each of the two."""
        numbers = range(1 if self._alike else 2)
        for number in numbers:  # both import at the same time
            user_scripts.forks(*user_scripts.RANKS, number=number)
        more = [self._prepare] if self._prepare else []
        return [user_scripts.forks(*user_scripts.RANKS, *more, number=each, path=self._versions) for each in numbers]

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []

    def _printed(self, rank: int) -> str:
        assert self._logs is not None
        path = Path(self._logs.name, f"{rank}.log")
        return path.read_text(encoding="utf-8", errors="replace")[-4000:] if path.exists() else ""
