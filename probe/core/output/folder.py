"""The directory of a run and rank: that of an earlier run, which is resumed, or one that is made when it is needed."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from probe.core.config.schema import Settings
from probe.core.output.resume import Resumed, resume
from probe.core.output.sinks import KEPT
from probe.core.storage import run_directory


class OutputFolder:
    """The directory of a run and rank.

    Args:
        first: number of the first step.

    Raises:
        ValueError: if a directory is resumed without the number of the first step.
    """

    def __init__(self, settings: Settings, rank: int, first: int) -> None:
        # training may change its directory
        self.root = run_directory.output_root(os.environ, settings.output_dir).absolute()
        writes = set(settings.formats) - {KEPT}
        self.resumed: Resumed | None = resume(self.root, rank, settings.append_output, first) if writes else None
        """The directory of an earlier run that is continued."""
        self.path: Path | None = None
        """The directory; None until it is made."""
        self.name = self.resumed.directory.name if self.resumed else run_directory.directory_name(rank, time.time())
        self._lock = threading.RLock()

    def make(self) -> Path:
        """Return the directory; make it if it does not exist yet.

        Raises:
            OSError: if it cannot be made.
        """
        with self._lock:
            if self.path is None:
                old = self.resumed.directory if self.resumed else None
                self.path = old or run_directory.create(self.root, self.name)
            return self.path
