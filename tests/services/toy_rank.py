"""Program of a rank that trains nothing: it shows progress, and stands still where the test wants it.

``python -m tests.services.toy_rank SPECIFICATION SCRIPT``: the specification is JSON; the script is a list of actions
with their arguments. An action that waits ends when the test makes the file of its name.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

from probe.core.faults import Faults
from probe.core.run_state import watcher_process
from probe.core.run_state.progress import Progress
from probe.core.run_state.watcher_process import WatcherSettings, ensure_watcher

STEP_SECONDS = 0.01


class ToyRank:
    def __init__(self, specification: dict) -> None:
        self.signals = Path(specification["signals"])
        self.number, self.looks = 0, True
        folder = Path(specification["folder"])
        self.rank = specification["rank"]
        self.progress = Progress(folder, self.rank, specification["ranks"], "toy")
        command = [sys.executable, "-m", "tests.services.file_watcher"]
        settings = WatcherSettings(job="toy", output=specification["output"], **specification["settings"])
        self.watcher = ensure_watcher(folder, settings, self.rank == 0, Faults(), command)
        threading.Thread(target=self.look, daemon=True).start()

    def look(self) -> None:
        while True:
            time.sleep(0.05)
            if self.looks:
                self.watcher.look()

    def leave_files(self) -> None:
        """Make no file again that is removed, as a rank whose threads all stand still."""
        self.looks = False

    def there(self, name: str) -> bool:
        return (self.signals / name).exists()

    def mark(self, name: str) -> None:
        (self.signals / name).touch()

    def steps(self, name: str) -> None:
        """Train until a file is there."""
        while not self.there(name):
            time.sleep(STEP_SECONDS)
            self.number += 1
            self.progress.step(self.number)

    def train(self, steps: str) -> None:
        """Train some steps."""
        for _ in range(int(steps)):
            time.sleep(STEP_SECONDS)
            self.number += 1
            self.progress.step(self.number)

    def load_batch(self, name: str) -> None:
        """Stand still until a file is there: this function is the innermost one at any time."""
        path = os.fspath(self.signals / name)
        while not os.access(path, os.F_OK):
            time.sleep(STEP_SECONDS)

    def evaluate(self, name: str) -> None:
        self.load_batch(name)

    def save_checkpoint(self, name: str) -> None:
        self.load_batch(name)

    def phase(self, phase: str, name: str) -> None:
        with self.progress.phase(phase):
            self.load_batch(name)

    def promise(self, seconds: str) -> None:
        self.progress.promise(float(seconds))

    def hold_lock(self) -> None:
        sum(range(10**12))

    def leave(self, code: str) -> None:
        os._exit(int(code))

    def allocate(self) -> None:
        blocks = []
        while True:
            blocks.append(b"x" * 2**24)

    def end(self) -> None:
        self.progress.close()


def main() -> None:
    watcher_process.SECONDS, watcher_process.LATER_SECONDS = 0.2, 0.6
    rank = ToyRank(json.loads(sys.argv[1]))
    for name, *arguments in json.loads(sys.argv[2]):
        getattr(rank, name)(*arguments)


if __name__ == "__main__":
    main()
