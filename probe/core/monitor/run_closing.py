"""End of a run as people see it: a summary for the parent process of the node or, without one, a line."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable

from probe.core.door import attempt
from probe.core.faults import Faults
from probe.core.messages import complain
from probe.core.sentinel.board import Board
from probe.core.sentinel.run_account import RunAccount
from probe.core.sentinel.watch_summary import WatchSummary, report_of

WHERE = "summary of the run"
"""Place of failures."""
State = Callable[[], tuple[int, str | None]]
RENEW_SECONDS = 1.0
"""Least time between two summaries of a run that goes on."""


class RunClosing:
    """Summaries of one run on one rank.

    Args:
        account: of the run.
        state: method that returns the number of the step in progress, and the directory of the files; other threads
            must not keep its object, and with it the model, alive.
    """

    def __init__(self, account: RunAccount, faults: Faults, state: weakref.WeakMethod[State]) -> None:
        self.board = Board.of(os.environ)
        """The board of the parent process; None without one."""
        self.account = account
        self._faults, self._state = faults, state
        self._written, self._closed, self._process = 0.0, False, os.getpid()

    def begin(self) -> None:
        """Write to the board, if there is one, that the run has begun, and from now on what is found."""
        if self.board is not None:
            self.account.changed = self._renew
            attempt(self._faults, WHERE, self._write, False)

    def close(self) -> None:
        """Write the summary, or the line; a further call does nothing."""
        if self._closed or os.getpid() != self._process:  # a forked child: the run is its parent's
            return
        self._closed = True
        summary = self._summary(True)
        if summary is None:
            return
        if self.board is not None and self.board.is_read:
            attempt(self._faults, WHERE, self.board.summary, summary)
        elif not summary.steps:
            return
        elif self.account.is_grave or os.environ.get("LOCAL_RANK", str(summary.rank)) == "0":
            report = report_of([summary])
            complain(report.line(), "warning" if report.verdict.kind else "info")

    def _renew(self, at_once: bool) -> None:
        """Write the summary of a run that goes on, which may be killed."""
        if (
            not self._closed
            and os.getpid() == self._process
            and (at_once or time.monotonic() - self._written > RENEW_SECONDS)
        ):
            attempt(self._faults, WHERE, self._write, False)

    def _write(self, ended: bool) -> None:
        self._written = time.monotonic()
        summary = self._summary(ended)
        if self.board is not None and summary is not None:
            self.board.summary(summary)

    def _summary(self, ended: bool) -> WatchSummary | None:
        state = self._state()
        return None if state is None else self.account.summary(*state(), self._faults.counts, ended)
