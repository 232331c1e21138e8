"""Failures of the watch of a program that is watched as it is: each is one line, and the program runs all the same."""

from __future__ import annotations

import os

from probe.core.messages import complain
from probe.core.sentinel.board import note_reason


class WatchFailures:
    """Counter of failures, by place and kind; the first of each is reported on standard error."""

    def __init__(self) -> None:
        self.uncounted = 0
        self.counts: dict[str, int] = {}

    def note(self, where: str, error: BaseException) -> None:
        """Count a failure; report the first of its place and kind."""
        kind = f"{where}: {type(error).__name__}"
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if self.counts[kind] == 1:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            unwatched(f"this program is not watched ({text})")


def unwatched(text: str) -> None:
    """Report why nothing is watched in this process, in place of the parent process."""
    complain(text, "warning")
    note_reason(os.environ)


FAILURES = WatchFailures()
"""Failures of this process."""
