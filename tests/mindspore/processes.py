"""Processes that train together on MindSpore, with the scheduler that they need."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from tests import user_scripts
from tests.quick_python import quick_python
from tests.waiting import free_port

ROOT = Path(__file__).parents[2]
SECONDS = 120
"""After which a process is given up."""
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


def run(script: str, ranks: int, root: Path) -> Path:
    """Runs ``script`` in ``ranks`` processes; Python must end with exit code 0 in all. Returns where monitors have
    written."""
    port = free_port()
    environment = os.environ | {
        "MS_WORKER_NUM": str(ranks),
        "MS_SCHED_HOST": "127.0.0.1",
        "MS_SCHED_PORT": str(port),
        "MONITOR_OUTPUT_DIR": str(root / "out"),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "PYTHONFAULTHANDLER": "1",
    }
    roles = [{"MS_ROLE": "MS_WORKER", "MS_NODE_ID": str(number)} for number in range(ranks)]
    with ExitStack() as ending:
        workers, files = [], []
        for role in ({"MS_ROLE": "MS_SCHED"}, *roles):
            log = ending.enter_context((root / f"{''.join(role.values())}.log").open("w"))
            command = [quick_python(*user_scripts.MINDSPORE), script]
            process = subprocess.Popen(command, cwd=root, env=environment | role, stdout=log, stderr=log)
            ending.callback(process.wait)
            ending.callback(process.kill)
            if role in roles:
                workers.append(process)
                files.append(Path(log.name))
        with suppress(subprocess.TimeoutExpired):
            for worker in workers:
                worker.wait(SECONDS)
        codes = [worker.poll() for worker in workers]
        for worker in workers:
            with suppress(subprocess.TimeoutExpired):
                worker.send_signal(signal.SIGABRT)  # one that still runs prints where it stands
                worker.wait(SECONDS)
    for number, file in enumerate(files):
        if codes[number] == -signal.SIGSEGV and AFTER_PYTHON.search(file.read_text(encoding="utf-8", errors="replace")):
            codes[number] = 0
    logs = "\n".join(path.read_text(encoding="utf-8", errors="replace")[-3000:] for path in sorted(root.glob("*.log")))
    assert codes == [0] * ranks, f"exit codes {codes}\n{logs}"
    return root / "out"
