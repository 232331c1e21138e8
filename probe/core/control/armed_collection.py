"""Collection around an incident: when the sentinel finds something in the numbers of an update, everything is collected
for some steps, within limits. The judge's thread reports findings; the training thread asks between two steps."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from probe.core.checks.check import CheckFinding
from probe.core.checks.gradient_apart import GradientApart
from probe.core.checks.gradient_gone import GradientGone
from probe.core.checks.gradient_leap import GradientLeap
from probe.core.checks.gradient_not_finite import GradientNotFinite
from probe.core.checks.loss_leap import LossLeap
from probe.core.checks.loss_not_finite import LossNotFinite
from probe.core.checks.nothing_moves import NothingMoves
from probe.core.checks.parameter_stuck import ParameterStuck
from probe.core.checks.scaling_fails import ScalingFails
from probe.core.checks.turning_unstable import TurningUnstable

STEPS = 10
"""Steps of an incident at most."""
INCIDENTS, SECONDS = 3, 3600.0
"""Incidents within this time at most."""
SHARE = 0.02
"""Part of the run's time that all incidents together take at most."""
SHORTEST_RUN = 60.0
"""Seconds that a run counts as having taken at least: how long it will be is not known at its beginning."""
BYTES = 256 * 2**20
"""Size of the rows of an incident at most, as if none were written meanwhile."""
SUSPICIONS = 10
"""Steps of a run at most whose judgement training waits for."""
OF_NUMBERS = frozenset(
    check.name
    for check in (
        GradientApart,
        GradientGone,
        GradientLeap,
        GradientNotFinite,
        LossLeap,
        LossNotFinite,
        NothingMoves,
        ParameterStuck,
        ScalingFails,
        TurningUnstable,
    )
)
"""Checks of numbers, a warning of which is a reason to collect more; critical findings are in any case."""
_log = logging.getLogger("probe")


class CollectedSteps(NamedTuple):
    """Steps in which everything is collected."""

    kinds: tuple[str, ...]
    """Names of the checks that have found something since it was armed, the first ones being the reason."""
    first_finding: int
    """Step at which the first of them was found."""
    first: int
    last: int | None = None
    """None while it lasts."""

    def covers(self, step: int) -> bool:
        """Return whether a step is one of them."""
        return self.first <= step and (self.last is None or step <= self.last)


class ArmedCollection:
    """Trigger and limits of the collection around incidents of one run. Only :meth:`receive` and :meth:`suspect` are
    called outside the boundary between two steps.

    Args:
        now: returns the seconds of a monotonic clock.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._began = now, now()
        self.wake: Callable[[], object] = lambda: None
        """Function that has the training thread ask at the next boundary between two steps."""
        self._reports: deque[tuple[str, int]] = deque()
        """Checks that have found something, with the step, on their way to the training thread."""
        self._seen: set[str] = set()
        self._begun: deque[float] = deque(maxlen=INCIDENTS)
        """Times at which the latest incidents began."""
        self._refused: set[str] = set()
        """Reasons that were logged."""
        self._suspicions, self._suspicious = 0, False
        self._spent = 0.0
        """Seconds of all incidents."""
        self._account = 0.0
        """Account of the monitor's time at the last boundary."""
        self._size = 0
        """Bytes of the incident in progress."""
        self._limit = ""
        """Limit that it has reached; empty if none."""
        self.stretches: list[CollectedSteps] = []
        """All incidents, in order; the last one may be in progress."""

    # From the judge's thread, and from training where a loss is seen.

    def receive(self, findings: Iterable[CheckFinding]) -> None:
        """Take what the checks have found: critical findings, and warnings about numbers."""
        reports = [
            (finding.check, finding.step)
            for finding in findings
            if finding.grade == "critical" or (finding.grade == "warning" and finding.check in OF_NUMBERS)
        ]
        if reports:
            self._reports += reports
            self.wake()

    def suspect(self) -> None:
        """Note that the loss of the step in progress is not finite, so that its judgement is worth a short wait."""
        if LossNotFinite.name not in self._seen and self._suspicions < SUSPICIONS and not self._suspicious:
            self._suspicions, self._suspicious = self._suspicions + 1, True
            self.wake()

    # Between two steps of training.

    def suspicious(self) -> bool:
        """Return, once, whether the step that has ended is suspicious."""
        suspicious, self._suspicious = self._suspicious, False
        return suspicious

    @property
    def active(self) -> bool:
        """True while everything is collected."""
        return bool(self.stretches) and self.stretches[-1].last is None

    def take(self) -> list[tuple[str, int]]:
        """Return the checks of kinds that were not seen before, with their steps. While an incident lasts, they are
        part of it, and none is returned."""
        reports: dict[str, int] = {}
        while self._reports:
            check, step = self._reports.popleft()
            if check not in self._seen:
                reports.setdefault(check, step)
        if reports and self.active:
            stretch = self.stretches[-1]
            self.stretches[-1] = stretch._replace(kinds=(*stretch.kinds, *reports))
            self._seen.update(reports)
            return []
        return [*reports.items()]

    def refusal(self) -> str:
        """Return the limit that forbids another incident; empty if none does."""
        if len(self._begun) == INCIDENTS and self._now() - self._begun[0] < SECONDS:
            return f"{INCIDENTS} incidents within an hour"
        if self._spent >= self._allowance():
            return f"{SHARE:.0%} of the run's time"
        return ""

    def refuse(self, kinds: Sequence[str], reason: str) -> None:
        """Log, once a reason, why nothing more is collected."""
        if reason not in self._refused:
            self._refused.add(reason)
            after = f"after {', '.join(kinds)} " if kinds else ""
            _log.warning("sentinel: %snothing more is collected: %s", after, reason)

    def begin(self, reports: Iterable[tuple[str, int]], step: int, account: float) -> None:
        """Note that everything is collected from ``step`` on.

        Args:
            reports: what :meth:`take` has returned.
            account: seconds that the monitor has taken so far.
        """
        kinds = dict(reports)
        self._seen.update(kinds)
        self._begun.append(self._now())
        self._account, self._size, self._limit = account, 0, ""
        self.stretches.append(CollectedSteps(tuple(kinds), min(kinds.values()), step))

    @property
    def exhausted(self) -> bool:
        """True if the incident in progress has reached a limit before its last step."""
        return bool(self._limit)

    def spend(self, account: float, size: int) -> None:
        """Take the cost of a step of the incident in progress.

        Args:
            account: seconds that the monitor has taken so far.
            size: bytes of the rows of the step.
        """
        self._spent, self._account = self._spent + max(0.0, account - self._account), account
        self._size += size
        if self._spent >= self._allowance():
            self._limit = f"{SHARE:.0%} of the run's time"
        elif self._size >= BYTES:
            self._limit = f"{BYTES >> 20} MiB"

    def end(self, step: int, why: str = "the configuration has changed") -> None:
        """Note that ``step``, which is about to begin, is collected as configured again; log the incident.

        Args:
            why: the reason, unless all steps are over or a limit is reached.
        """
        if not self.active:
            return
        if step == self.stretches[-1].first:  # before anything was collected
            self.stretches.pop()
            return
        stretch = self.stretches[-1] = self.stretches[-1]._replace(last=step - 1)
        reason = self._limit or (f"{STEPS} steps" if step - stretch.first >= STEPS else why)
        _log.info(
            "collected deep at steps %d to %d, after %s at step %d; ended: %s",
            stretch.first,
            step - 1,
            ", ".join(stretch.kinds),
            stretch.first_finding,
            reason,
        )

    def _allowance(self) -> float:
        """Return the seconds that all incidents may take."""
        return SHARE * max(SHORTEST_RUN, self._now() - self._began)
