"""Request to attach, and the files by which one process and the command answer each other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe import __version__
from probe.core.language import message
from probe.core.storage.files import replace_text

ROOT = Path(__file__).resolve().parents[3]
"""Folder that holds the package."""
_SCRIPT, _STARTED, _READY, _ANSWER = "script.py", "started.json", "ready.json", "answer.json"
_DECIDED = "decided"


@dataclass(frozen=True)
class AttachRequest:
    """Request to attach."""

    pids: tuple[int, ...]
    """The processes; the first one names the step at which all of them begin."""
    config: str | None = None
    """Path of the configuration; None for gradients and alerts."""
    at_step: int | None = None
    """Number of the first step; None for the next one that is possible."""
    version: str = __version__
    root: str = str(ROOT)
    """Folder of the package, for a process that has none on its path."""


class ProcessPlace:
    """Files of one process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def request(self) -> AttachRequest:
        """The request that this process is part of."""
        values = json.loads((self.folder.parent / "request.json").read_text(encoding="utf-8"))
        return AttachRequest(**{**values, "pids": tuple(values["pids"])})

    @property
    def notices(self) -> Path:
        """Folder of announcements, the same for all processes of the request."""
        return self.folder.parent / "notices"

    @property
    def script(self) -> Path:
        """The script that the process runs."""
        return self.folder / _SCRIPT

    # In the process.

    def ready(self) -> None:
        """Note that this process waits for its step."""
        replace_text(self.folder / _READY, "{}")

    def all_ready(self) -> bool:
        """Return whether every process of the request waits for its step."""
        return all((self.folder.parent / str(pid) / _READY).exists() for pid in self.request.pids)

    def is_decided(self) -> bool:
        """Return whether this process is about to attach, or the command has given up and perhaps ended."""
        return (self.folder / _DECIDED).exists() or not self.folder.exists()

    def decide(self) -> bool:
        """Return whether the decision is the caller's: once for each process, while the command waits."""
        try:
            (self.folder / _DECIDED).mkdir()
        except (FileExistsError, FileNotFoundError):
            return False
        return True

    def answer(self, state: str, **values: Any) -> None:
        """Answer the request: ``attached``, ``refused`` or ``busy``. Nobody waits for it if the folder is gone."""
        with suppress(FileNotFoundError):
            replace_text(self.folder / _ANSWER, json.dumps({"state": state, **values}))

    # In the command.

    def answered(self) -> Mapping[str, Any] | None:
        """Return the answer, if there is one."""
        try:
            answer: Mapping[str, Any] = json.loads((self.folder / _ANSWER).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return answer

    def is_started(self) -> bool:
        """Return whether the process has begun to run its script."""
        return (self.folder / _STARTED).exists()

    def forget_answer(self) -> None:
        """Remove the answer, before the process is asked again."""
        (self.folder / _ANSWER).unlink(missing_ok=True)

    def progress(self) -> str:
        """Return why there is no answer yet."""
        if not self.is_started():
            return message(
                "its main thread has run no Python code since, such as while it waits for a device or another rank"
            )
        if not (self.folder / _READY).exists():
            return message("it is still importing the monitor and looking for optimizers")
        return message("no training step has ended and begun since")
