"""Processes that train together on MindSpore, with the scheduler that they need."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import user_scripts
from tests.distributed.ranks import Ranks
from tests.forks import ROOT, Forked, ForkServer
from tests.waiting import free_port

SECONDS = 120
"""After which a process is given up."""
SCHEDULER = "import mindspore as ms; ms.set_device('CPU'); ms.communication.init()"
AFTER_PYTHON = re.compile(
    r"Fatal Python error: Segmentation fault\n\nThread 0x\w+ \(most recent call first\):\n  <no Python frame>\n"
)
"""Crash of MindSpore's communicator when the process goes and no Python runs any more (seen once, 2.10)."""


def queued(function: Callable[[], Any], folder: Path) -> Any:
    """What a function of a module returns, through JSON, in a process whose operators run behind the program."""
    script = f"import json\nfrom {function.__module__} import {function.__name__} as f\nprint(json.dumps(f()))"
    server, own = user_scripts.forks(*user_scripts.MINDSPORE), {"PYTHONPATH": str(ROOT), **user_scripts.QUEUED}
    done = user_scripts.ran(server, ["-c", script], folder, os.environ | own)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class MindSporeRanks(Ranks):
    """Processes that train together on MindSpore, with the scheduler that they need. Python must end with exit code 0
    in all."""

    worker = "tests.mindspore.worker"

    def __init__(self, size: int) -> None:
        of_mindspore = {
            "MS_ROLE": "MS_WORKER",
            "MS_WORKER_NUM": str(size),
            "MS_SCHED_HOST": "127.0.0.1",
            "MS_RETRY_INTERVAL_LOWER": "0",  # otherwise processes that do not meet at once wait for 3 to 5 seconds
            "MS_RETRY_INTERVAL_UPPER": "1",
        }
        super().__init__(size, environment=of_mindspore)
        self._scheduler: Forked | None = None

    def close(self) -> None:
        """Lets the processes end.

        Raises:
            AssertionError: if one ends with another exit code than 0.
        """
        for pipe in self._pipes:
            pipe.close()
        codes = [self._code(process) for process in self._processes]
        for rank, code in enumerate(codes):
            if code == -signal.SIGSEGV and AFTER_PYTHON.search(self._printed(rank)):
                codes[rank] = 0
        printed = "\n".join(map(self._printed, range(len(codes))))
        super().close()
        assert not any(codes), f"exit codes {codes}\n{printed}"

    def _code(self, process: Forked) -> int:
        try:
            return process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # prints where it stands
            return process.wait(SECONDS)

    def _start(self) -> None:
        (server,) = self._servers()
        self._environment["MS_SCHED_PORT"] = str(free_port())
        environment = self._environment | {"MS_ROLE": "MS_SCHED"}
        with Path(os.devnull).open("w") as nothing:
            output = {"stdout": nothing.fileno(), "stderr": nothing.fileno()}
            self._scheduler = server.start(["-c", SCHEDULER], environment=environment, cwd=str(ROOT), **output)
        super()._start()

    def _servers(self) -> list[ForkServer]:
        return [user_scripts.forks(*user_scripts.MINDSPORE)]

    def _kill(self) -> None:
        super()._kill()
        if self._scheduler is not None:
            self._scheduler.kill()
            self._scheduler.wait()
