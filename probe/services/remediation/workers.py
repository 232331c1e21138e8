"""Threads that carry out planned actions: several at one time, never two for one target."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from probe.core.alerting.redaction import describe_error, redact
from probe.core.messages import printable
from probe.services.remediation.planned_action import (
    Execution,
    FailedActionError,
    InterruptedActionError,
    PlannedAction,
)
from probe.services.remediation.store import ActionState, ActionStore

_log = logging.getLogger("probe.remediation")

STORE_TRIES = 3
"""Attempts to record the end of an action."""
STORE_SECONDS = 1.0
"""Seconds between two of them."""
END_SECONDS = 15.0
"""Longest time in seconds for actions that are under way when the service ends."""


class QueuedAction(NamedTuple):
    """Planned action with its entry in the history."""

    id: int
    name: str
    planned: PlannedAction
    dry_run: bool
    seconds: float
    """Longest time that it takes."""


class ActionWorkers:
    """Threads and the queue before them.

    Args:
        report: function that gets the id of an entry after each change of its state, on the thread that made it.
    """

    def __init__(self, store: ActionStore, number: int, report: Callable[[int, ActionState], None]) -> None:
        self._store, self._report = store, report
        self._changed = threading.Condition()
        self._queue: list[QueuedAction] = []
        self._busy: set[str] = set()
        self._ending = threading.Event()
        self.store_failures = 0
        """Entries of the history that could not be written."""
        self._threads = [
            threading.Thread(target=self._run, name=f"probe-remediation-{n}", daemon=True) for n in range(number)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """Number of actions that have not begun."""
        return len(self._queue)

    @property
    def running(self) -> int:
        """Number of actions under way."""
        return len(self._busy)

    @property
    def alive(self) -> bool:
        """True if every thread runs."""
        return all(thread.is_alive() for thread in self._threads)

    def add(self, action: QueuedAction) -> None:
        """Add an action to the queue."""
        with self._changed:
            self._queue.append(action)
            self._changed.notify_all()

    def close(self) -> None:
        """End: actions under way are interrupted, those that wait never begin; the history records both."""
        with self._changed:
            self._ending.set()
            waiting, self._queue = self._queue, []
            self._changed.notify_all()
        for action in waiting:
            self._record(action, "interrupted", "the service ended before it began")
        until = time.monotonic() + END_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _run(self) -> None:
        while (action := self._next()) is not None:
            try:
                self._carry_out(action)
            except Exception as error:  # noqa: BLE001 - the thread goes on with the next action
                _log.error("id=%d action=%s: internal error: %s", action.id, action.name, describe_error(error))
            finally:
                with self._changed:
                    self._busy.discard(action.planned.target)
                    self._changed.notify_all()

    def _next(self) -> QueuedAction | None:
        """Wait for the first action whose target is free; None at the end."""
        with self._changed:
            while not self._ending.is_set():
                for place, action in enumerate(self._queue):
                    if action.planned.target not in self._busy:
                        self._busy.add(action.planned.target)
                        return self._queue.pop(place)
                self._changed.wait()
        return None

    def _carry_out(self, action: QueuedAction) -> None:
        try:
            self._store.begin(action.id, time.time())
        except sqlite3.Error as error:
            self.store_failures += 1
            _log.error("id=%d action=%s: not begun, since it cannot be recorded: %s", action.id, action.name, error)
            return
        self._report(action.id, "started")
        state, message = self._outcome(action)
        self._record(action, state, printable(redact(message)))

    def _outcome(self, action: QueuedAction) -> tuple[ActionState, str]:

        def note(message: str, process: str) -> None:
            self._store.note(action.id, printable(redact(message)), process)

        execution = Execution(action.seconds, self._ending, note)
        try:
            if action.dry_run:
                return "done", f"dry run: {action.planned.rehearse()}"
            return "done", action.planned.perform(execution)
        except FailedActionError as error:
            return "failed", str(error)
        except InterruptedActionError as error:
            return "interrupted", str(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the history has it
            _log.error("id=%d action=%s: internal error", action.id, action.name, exc_info=True)
            return "failed", f"internal error: {describe_error(error)}"

    def _record(self, action: QueuedAction, state: ActionState, message: str) -> None:
        for attempt in range(STORE_TRIES):
            try:
                self._store.finish(action.id, state, message, time.time())
                break
            except sqlite3.Error as error:
                self.store_failures += 1
                _log.error("id=%d action=%s state=%s: cannot be recorded: %s", action.id, action.name, state, error)
                if attempt < STORE_TRIES - 1:
                    self._ending.wait(STORE_SECONDS)
        self._report(action.id, state)
