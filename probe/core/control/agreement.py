"""Changes that all ranks make at one step: the lead of an announcement, the changes until their step begins, and the
interval between sampled steps."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import Any, Generic, TypeVar

from probe.core.distributed.announcements import Notices
from probe.core.faults import Faults
from probe.core.instrumentation.schedule import Pace

Change = TypeVar("Change")

FEWEST = 2
"""Steps of lead where there are several ranks: one of them may be a step behind."""
STEPS = 21
"""Number of latest steps whose median duration counts: the first step of a run, and steps that save or evaluate, take
many times as long as others."""
DIFFERENCE = 0.25
"""Part of the interval between sampled steps by which a new one must differ."""


class LeadTime:
    """Number of steps in the time until a change of a file is visible on every rank.

    Args:
        seconds: time after which every rank sees a change of a file.
        now: returns the seconds of a monotonic clock.
    """

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._ended = now, now()
        self._took: deque[float] = deque(maxlen=STEPS)
        self.seconds = seconds

    def step_ended(self) -> None:
        """Note the end of a step."""
        now = self._now()
        self._took.append(now - self._ended)
        self._ended = now

    def steps(self) -> int:
        """Return the number of steps after which every rank has read an announcement that is written now."""
        a_step = median(self._took) if self._took else 0.0
        return max(FEWEST, math.ceil(self.seconds / a_step)) if a_step > 0 else FEWEST


class ScheduledChange(Generic[Change]):
    """Changes that were announced for a step, until that step begins on this rank.

    Args:
        fault: the name under which failures and late changes are counted.
        notices: the announcements, the same ones on every rank; each has its ``step``.
        parse: makes a change from an announcement.
    """

    def __init__(
        self, fault: str, notices: Notices, parse: Callable[[Mapping[str, Any]], Change], faults: Faults
    ) -> None:
        self._fault, self._notices, self._parse, self._faults = fault, notices, parse, faults
        self._pending: deque[tuple[int, Change]] = deque()

    def read(self) -> bool:
        """Read the next announcement, if there is one. It supersedes pending changes of the same or a later step.

        Raises:
            OSError, ValueError, KeyError, TypeError: if it cannot be read or parsed.
        """
        if (notice := self._notices.read()) is None:
            return False
        self.expect(int(notice["step"]), self._parse(notice))
        return True

    def expect(self, step: int, change: Change) -> None:
        """Schedule ``change`` for ``step``, in place of pending changes of the same or a later step."""
        while self._pending and self._pending[-1][0] >= step:
            self._pending.pop()
        self._pending.append((step, change))

    def next_step(self) -> int | None:
        """Return the step of the first pending change; if none is pending, read the next announcement first.

        Raises:
            OSError, ValueError, KeyError, TypeError: as :meth:`read`.
        """
        if not self._pending:
            self.read()
        return self._pending[0][0] if self._pending else None

    def announce(self, step: int, **change: object) -> None:
        """Announce a change for ``step``, unless another rank was first; read the announcement that counts.

        Raises:
            OSError, ValueError, KeyError, TypeError: as :meth:`read`.
        """
        self._notices.give({"step": step, **change})
        self.read()

    def poll(self, step: int) -> Change | None:
        """Return the last change due when ``step`` begins, or None; count those whose step is over as late."""
        change = None
        while self._pending and self._pending[0][0] <= step:
            at, change = self._pending.popleft()
            if at < step:
                self._faults.note(self._fault, too_late(step, at))
        return change

    def drop(self) -> Change:
        """Remove and return the first pending change, which never takes effect here."""
        return self._pending.popleft()[1]

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count failures to read or write announcements, and raise none."""
        try:
            yield
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._faults.note(self._fault, error)


def too_late(seen: int, at: int) -> TimeoutError:
    """Return the fault of a rank that sees a change of step ``at`` only at step ``seen``."""
    return TimeoutError(f"seen at step {seen}, too late for step {at}")


class AgreedPace(Pace):
    """The same interval on all ranks, changed at the same step: the first rank announces it, from its own measurements.

    Args:
        lead_steps: returns the number of steps after which every rank has read an announcement that is written now.
    """

    def __init__(
        self, budget: float, interval: int, notices: Notices, leads: bool, lead_steps: Callable[[], int], faults: Faults
    ) -> None:
        super().__init__(budget, interval)
        self._leads, self._lead_steps, self._best = leads, lead_steps, interval
        self._next = ScheduledChange("pace", notices, lambda notice: int(notice["interval"]), faults)

    def between(self, step: int) -> None:
        with self._next.counted():
            due = self._next.next_step()
            if self._leads and due is None and abs(self._best - self.interval) > DIFFERENCE * self.interval:
                self._next.announce(step + self._lead_steps(), interval=self._best)
        if (interval := self._next.poll(step)) is not None:
            self.interval = interval

    def _want(self, interval: int) -> None:
        self._best = interval
