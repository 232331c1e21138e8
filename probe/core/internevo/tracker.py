"""Tracker of the steps of a run: an alert when there are none for too long, and losses judged."""

from __future__ import annotations

import math
import time
from contextlib import suppress

from probe.core.internevo.recipients import LOSS_RATIO, Recipient, Recipients, recipients
from probe.core.run_state.budget import Budget, OwnBudget
from probe.core.worker import Worker

INTERVAL_SECONDS = 300
"""Default of the interval within which a step is expected."""
RECOVERY_SECONDS = 0.5
"""Time between two looks for the next step while training is stuck."""
LATENESS = 2.0
"""Seconds by which a wait may end late; if it ends later, the whole process has stood still."""
STUCK = "stuck"


def positive(name: str, value: float) -> float:
    """Return ``value``.

    Raises:
        ValueError: if it is no finite number above 0.
    """
    number = math.nan
    with suppress(TypeError, ValueError):
        number = float(value)
    if isinstance(value, bool | str) or not (math.isfinite(number) and number > 0):
        raise ValueError(f"{name}: expected a positive number, got {value!r}")
    return number


class MonitorTracker:
    """Tracker of the steps and losses that :meth:`MonitorManager.monitor_loss_spike` receives.

    Training that reports no step within ``check_interval`` is stuck, also before the first step: one alert is sent, and
    one notice when it goes on. Where steps have taken a third of the interval or more, the time grows with them, by the
    budget that the watcher of a node has. Losses are judged as they come, each against the one before.

    Args:
        alert_address: Feishu webhook; empty or None: nothing is tracked.
        check_interval: time in seconds within which a step is expected.
        loss_spike_limit: multiple of the previous loss above which a loss is a spike.

    Raises:
        ValueError: if the address is none, or a number is not positive.
    """

    def __init__(
        self, alert_address: str | None, check_interval: float = INTERVAL_SECONDS, loss_spike_limit: float = LOSS_RATIO
    ) -> None:
        self._interval = positive("check_interval", check_interval)
        self._limit = positive("loss_spike_limit", loss_spike_limit)
        self._address = alert_address
        self._recipients = recipients()
        self._worker: Worker | None = None
        self._followed: Recipient | None = self._recipient(alert_address) if alert_address else None

    def run(self) -> None:
        """Start the tracker's thread, unless it runs already."""
        if not self._address or self._worker is not None:
            return
        self._followed = recipient = self._recipient(self._address)
        recipient.sigterm_wanted = True
        recipient.tracked = True
        watch, faults = _StepWatch(self._recipients, recipient, self._interval), self._recipients.faults
        self._worker = Worker("probe tracker", "steps of the run", faults, look=watch.look, due=watch.pause())

    def stop(self) -> None:
        """End the thread, at once."""
        worker, self._worker = self._worker, None
        if self._followed is not None:
            self._followed.tracked = False
        if worker is not None:
            worker.end()
            worker.join(LATENESS)

    def _recipient(self, address: str) -> Recipient:
        found = self._recipients.of(address)
        found.losses.limit = self._limit
        return found


class _StepWatch:
    """Expectation of a next step within an interval, and the alert when there is none."""

    def __init__(self, recipients: Recipients, recipient: Recipient, interval: float) -> None:
        self._recipients, self._recipient, self._interval = recipients, recipient, interval
        self._budget, self._stuck_at, self._due = self._new_budget(), -1, 0.0

    def _new_budget(self) -> OwnBudget:
        budget = Budget(self._interval, self._interval)
        return OwnBudget(self._recipients.progress, budget, time.monotonic_ns())

    def look(self) -> float:
        """Judge the time since the last step; return the seconds until the next look."""
        row, left = self._budget.look(time.monotonic_ns())
        step = self._recipients.step
        if self._stuck_at >= 0:
            if row.time != self._stuck_at:
                self._stuck_at = -1
                self._recipient.resolve(STUCK, f"training goes on at step {step}")
        elif time.monotonic() > self._due + LATENESS:  # this process was suspended, and so was training
            self._budget = self._new_budget()
        elif left <= 0:
            self._stuck_at = row.time
            after = "before the first step" if step is None else f"after step {step}"
            seconds = (time.monotonic_ns() - row.time) / 1e9
            text = f"no step for {seconds:.4g} s; it may be saving, evaluating or compiling"
            self._recipient.send(STUCK, "hang", "critical", f"training may be stuck {after}", text, step)
        return self.pause()

    def pause(self) -> float:
        """Return the seconds until the next look."""
        _, left = self._budget.look(time.monotonic_ns())
        pause = RECOVERY_SECONDS if self._stuck_at >= 0 else max(0.0, left)
        self._due = time.monotonic() + pause
        return pause
