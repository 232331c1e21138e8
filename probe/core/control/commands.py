"""Commands to the program, which all ranks get before the same step.

A thread of the first rank looks for requests; training announces each for a step, as changes of the configuration are
announced (:mod:`probe.core.control.agreement`). Answers are written on the thread.
"""

from __future__ import annotations

import logging
import os
import queue
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from probe.core.control.agreement import too_late
from probe.core.control.command_requests import (
    MOST_TEXT,
    Acknowledgement,
    Command,
    State,
    acknowledge,
    command_of,
    read_request,
    waiting,
)
from probe.core.distributed.announcements import Notices
from probe.core.faults import Faults
from probe.core.worker import Worker

LOOK_SECONDS = 0.5
"""Time from one look into the folder to the next."""
CLOSE_SECONDS = 2.0
"""Longest time that the end of a run waits for answers to be written."""
WHERE = "commands"
"""Place under which failures are counted."""

_log = logging.getLogger("probe.control")


class _Announced(NamedTuple):
    """Command that all ranks get before one step."""

    step: int
    request: str
    command: Command


class CommandThread:
    """Thread that looks for requests, on the first rank, and writes answers.

    Args:
        folder: of the requests.
        looks: whether this rank looks for requests.
        began: time at which the run began; requests from before it are refused, since they were meant for another one.
    """

    def __init__(self, folder: Path, rank: int, looks: bool, began: float, faults: Faults) -> None:
        self._folder, self._rank, self._began = folder, rank, began
        self.found: queue.SimpleQueue[tuple[str, Command]] = queue.SimpleQueue()
        """Requests that have come since the run began."""
        self._seen: set[str] = set()
        self._worker = Worker("probe-commands", WHERE, faults, inline=True, look=self._look, things="answers")
        if looks:
            self._worker.wake()  # only now: a look may answer

    def answer(self, request: str, state: State, step: int, text: str) -> None:
        """Have an answer written."""
        answer = Acknowledgement(request, self._rank, state, step, text[:MOST_TEXT], time.time())
        self._worker.submit(partial(acknowledge, self._folder, answer))

    def close(self) -> None:
        """Write the answers so far, and end."""
        self._worker.close(CLOSE_SECONDS)

    def _look(self) -> float:
        for name in waiting(self._folder) if self._folder.is_dir() else ():
            if name in self._seen:
                continue
            self._seen.add(name)
            try:
                request = read_request(self._folder, name)
            except ValueError as error:
                self.answer(name, "refused", -1, str(error))
                continue
            if request.time < self._began:
                self.answer(name, "refused", -1, "it was requested before this run began")
            else:
                self.found.put((name, request.command))
        return LOOK_SECONDS


class CommandInbox:
    """Commands of one run on one rank.

    Args:
        leads: whether this rank announces the steps.
        lead_steps: returns the number of steps after which every rank has read what is announced now.
        notices: announcements of the commands.
        first: step before which nothing is announced: a rank that has not begun would miss it.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        leads: bool,
        lead_steps: Callable[[], int],
        notices: Notices,
        first: int,
        began: float,
        faults: Faults,
    ) -> None:
        self._thread = CommandThread(folder, rank, leads, began, faults)
        self._leads, self._lead_steps, self._notices = leads, lead_steps, notices
        self._first, self._faults = first, faults
        self._process = os.getpid()
        self._pending: deque[_Announced] = deque()
        self._to_announce: deque[tuple[str, Command]] = deque()
        self._outstanding = 0
        """Own announcements that have not been read back: another rank's may come first."""

    def due(self, step: int, accepts: Collection[type[Command]]) -> list[Command]:
        """Return the commands that take effect before ``step``, in the order of their requests.

        Args:
            accepts: types that the program carries out; empty: all. Others are refused.
        """
        if os.getpid() != self._process:
            return []
        try:
            self._exchange(step)
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._faults.note(WHERE, error)
        due = []
        while self._pending and self._pending[0].step <= step:
            at, request, command = self._pending.popleft()
            if at < step:
                self._faults.note(WHERE, too_late(step, at))
            if accepts and type(command) not in accepts:
                listed = ", ".join(sorted(kind.name for kind in accepts))
                self._thread.answer(request, "refused", step, f"the program accepts {listed}")
                continue
            _log.info("command %s before step %d: %s", command.name, step, command.model_dump())
            self._thread.answer(request, "accepted", step, "")
            due.append(command.received(_Answers(self._thread, request, step)))
        return due

    def _exchange(self, step: int) -> None:
        """Announce requests, one at a time, and read announcements."""
        if self._leads:
            with suppress(queue.Empty):
                while True:
                    self._to_announce.append(self._thread.found.get_nowait())
        self._read()
        while self._to_announce and not self._outstanding and step >= self._first:
            request, command = self._to_announce.popleft()
            at = step + self._lead_steps()
            self._outstanding += 1
            self._notices.give({"step": at, "request": request, "command": command.name, "args": command.model_dump()})
            self._read()

    def _read(self) -> None:
        while (notice := self._notices.read()) is not None:
            self._outstanding = max(0, self._outstanding - 1)
            announced = _announced(notice)
            # Steps ascend, even if the steps have become faster since the announcement before.
            if self._pending and announced.step < self._pending[-1].step:
                announced = announced._replace(step=self._pending[-1].step)
            self._pending.append(announced)

    def close(self) -> None:
        """Write the answers so far; refuse the commands whose step has not come."""
        if os.getpid() != self._process:
            return
        for announced in self._pending:
            self._thread.answer(announced.request, "refused", -1, "the run has ended before its step")
        self._pending.clear()
        self._thread.close()


class _Answers:
    """Writer of the program's answer to one command: the first one counts."""

    def __init__(self, thread: CommandThread, request: str, step: int) -> None:
        self._thread, self._request, self._step, self._answered = thread, request, step, False

    def __call__(self, state: State, text: str) -> None:
        if not self._answered:
            self._answered = True
            self._thread.answer(self._request, state, self._step, text)


def _announced(notice: Mapping[str, Any]) -> _Announced:
    return _Announced(int(notice["step"]), str(notice["request"]), command_of(str(notice["command"]), notice["args"]))
