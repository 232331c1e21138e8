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
from dataclasses import asdict
from pathlib import Path
from typing import Any

from probe.core.language import message
from probe.core.storage.files import replace_text
from probe.launch.attach import injection
from probe.launch.attach.processes import is_running
from probe.launch.attach.request import AttachRequest, ProcessPlace

POLL_SECONDS = 0.05
DECIDED_SECONDS = 30.0
"""Time that a process has for the answer once it has decided to attach."""


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
        """Yield the answer of each process as it comes. A process that has ended, or has not decided in time, gets an
        answer with the reason. After a refusal, the request to processes that have not decided is withdrawn."""
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
        if place.is_started():
            shutil.rmtree(place.folder, ignore_errors=True)
        else:
            replace_text(place.script, _LATE.format(place=str(place.folder), folder=str(folder)))
    shutil.rmtree(folder / "notices", ignore_errors=True)
    (folder / "request.json").unlink()
    with suppress(OSError):  # a process may still come
        folder.rmdir()
