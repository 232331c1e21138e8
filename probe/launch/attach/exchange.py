"""Folder by which the command and the processes that it attaches to exchange a request and answers.

Each process has a place in it. Who makes the directory ``decided`` there first decides: the process that attaches, or
the command that gives up.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from probe import __version__
from probe.core.language import message
from probe.launch.attach import injection
from probe.launch.attach.processes import is_running

ROOT = Path(__file__).resolve().parents[3]
"""Folder that holds the package."""
POLL_SECONDS = 0.05
DECIDED_SECONDS = 30.0
"""Time that a process has for the answer once it has decided to attach."""
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
        injection._write(str(self.folder), "ready", {})

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
            injection._write(str(self.folder), "answer", {"state": state, **values})

    # In the command.

    def answered(self) -> Mapping[str, Any] | None:
        """Return the answer, if there is one."""
        try:
            found: Mapping[str, Any] = json.loads((self.folder / _ANSWER).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return found

    def forget_answer(self) -> None:
        """Remove the answer, before the process is asked again."""
        (self.folder / _ANSWER).unlink(missing_ok=True)

    def progress(self) -> str:
        """Return why there is no answer yet."""
        if not (self.folder / _STARTED).exists():
            return message(
                "its main thread has run no Python code since, such as while it waits for a device or another rank"
            )
        if not (self.folder / _READY).exists():
            return message("it is still importing the monitor and looking for optimizers")
        return message("no training step has ended and begun since")


class AttachExchange:
    """The folder, as the command has it."""

    def __init__(self, folder: Path, request: AttachRequest) -> None:
        self.folder, self.request = folder, request
        self.places = {pid: ProcessPlace(folder / str(pid)) for pid in request.pids}
        values = json.dumps(asdict(request))
        (folder / "request.json").write_text(values, encoding="utf-8")
        source = Path(injection.__file__).read_text(encoding="utf-8")
        for place in self.places.values():
            place.folder.mkdir()
            place.script.write_text(f"{source}\n\ninject({str(place.folder)!r})\n", encoding="utf-8")

    def answers(self, seconds: float) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the answer of each process as it comes, and of those that have not decided in time, or whose process
        has ended, one that gives the reason. A refusal withdraws the request from those that have not decided."""
        open_, deadline = dict(self.places), time.monotonic() + seconds
        while open_:
            for pid, place in [*open_.items()]:
                answer = place.answered() or self._end_of(pid, place, deadline, seconds)
                if answer is None:
                    continue
                if answer["state"] == "busy":
                    place.forget_answer()
                else:
                    del open_[pid]
                if answer["state"] == "refused":
                    deadline = min(deadline, time.monotonic())
                yield pid, answer
            time.sleep(POLL_SECONDS)

    def _end_of(self, pid: int, place: ProcessPlace, deadline: float, seconds: float) -> Mapping[str, Any] | None:
        """Return the answer for a process that has ended or has not decided in time."""
        if not is_running(pid):
            return {"state": "ended", "reason": message("the process has ended")}
        if time.monotonic() < deadline:
            return None
        if place.decide():
            return {"state": "withdrawn", "reason": place.progress()}
        if time.monotonic() > deadline + DECIDED_SECONDS:
            reason = message(
                "it began to attach, and has not answered within {seconds:g} s", seconds=seconds + DECIDED_SECONDS
            )
            return {"state": "silent", "reason": reason}
        return None


@contextmanager
def exchange(request: AttachRequest) -> Iterator[AttachExchange]:
    """Make the folder of a request. Afterwards it is removed, but for what a process that has not run its script yet
    will still read: that script then removes the rest."""
    folder = Path(tempfile.mkdtemp(prefix="probe-attach-"))
    made = AttachExchange(folder, request)
    try:
        yield made
    finally:
        _remove(folder, [*made.places.values()])


_LATE = """import os, shutil
shutil.rmtree({place!r}, ignore_errors=True)
try:
    os.rmdir({folder!r})
except OSError:
    pass
"""
"""Script of a process that comes too late."""


def _remove(folder: Path, places: Sequence[ProcessPlace]) -> None:
    for place in places:
        if (place.folder / _STARTED).exists():
            shutil.rmtree(place.folder, ignore_errors=True)
        else:
            temporary = place.script.with_suffix(".tmp")
            temporary.write_text(_LATE.format(place=str(place.folder), folder=str(folder)), encoding="utf-8")
            temporary.replace(place.script)
    shutil.rmtree(folder / "notices", ignore_errors=True)
    (folder / "request.json").unlink()
    with suppress(OSError):  # a process may still come
        folder.rmdir()
