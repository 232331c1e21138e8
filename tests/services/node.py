"""A node of toy ranks and its watcher, as the tests start and look at them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from probe.core.run_state.progress_file import ProgressReader
from probe.core.run_state.watcher_process import watcher_pid
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
SECONDS = 120.0
FAST = {"floor_seconds": 1.0, "startup_seconds": 4.0, "poll_seconds": 0.1, "linger_seconds": 0.5, "grace_seconds": 0.5}


class Node:
    """Ranks of one node in a folder of the test."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder, self.output, self.signals = (tmp_path / name for name in ("ranks", "output", "signals"))
        for path in (self.folder, self.output, self.signals):
            path.mkdir()
        self.ranks: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        *scripts: Sequence[Sequence[str]],
        before: Sequence[str] = (),
        program: str = "tests.services.toy_rank",
        **settings: Any,
    ) -> None:
        for rank, script in enumerate(scripts):
            specification = {
                "folder": str(self.folder),
                "output": str(self.output),
                "signals": str(self.signals),
                "rank": rank,
                "ranks": len(scripts),
                "settings": FAST | settings,
            }
            command = [*before, sys.executable, "-m", program, json.dumps(specification), json.dumps(script)]
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # the watcher is a module of the tests
            self.ranks.append(subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True))

    def signal(self, name: str) -> None:
        (self.signals / name).touch()

    def alerts(self, *kinds: str) -> list[dict[str, Any]]:
        path = self.output / "alerts.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [each for each in map(json.loads, lines) if not kinds or each["kind"] in kinds]

    def alert(self, kind: str, number: int = 1) -> dict[str, Any]:
        """The alert of a kind at a position, from 1, once it is there."""
        return wait_for(lambda: len(self.alerts(kind)) >= number and self.alerts(kind)[number - 1])

    def reader(self, rank: int) -> ProgressReader:
        return ProgressReader(wait_for(lambda: list(self.folder.glob(f"rank{rank}-*.progress")))[0])

    def trained(self, rank: int, steps: int = 5) -> None:
        """Wait until a rank has made some steps."""
        reader = self.reader(rank)
        wait_for(lambda: reader.row().step >= steps)

    @property
    def watcher(self) -> int:
        """Process id of the watcher, once it lives."""
        return wait_for(lambda: max(0, watcher_pid(self.folder)))

    def close(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()
        if self.folder.exists() and (pid := watcher_pid(self.folder)) > 0:
            os.kill(pid, signal.SIGKILL)
