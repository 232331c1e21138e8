"""Tracker of the steps of a run: an alert when there are none for too long, and losses judged."""

from __future__ import annotations

import math
import threading
import time
from contextlib import suppress

from probe.core.internevo.recipients import LOSS_RATIO, Recipient, recipients
from probe.core.run_state.budget import Budget, OwnBudget

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
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._followed: Recipient | None = self._recipient(alert_address) if alert_address else None

    def run(self) -> None:
        """Start the tracker's thread, unless it runs already."""
        if not self._address or self._thread is not None:
            return
        self._followed = recipient = self._recipient(self._address)
        recipient.sigterm_wanted = True
        recipient.tracked = True
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._track, args=(recipient, self._stopped), name="probe tracker", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread, at once."""
        thread, self._thread = self._thread, None
        self._stopped.set()
        if self._followed is not None:
            self._followed.tracked = False
        if thread is not None and thread is not threading.current_thread():
            thread.join(LATENESS)

    def _recipient(self, address: str) -> Recipient:
        found = self._recipients.of(address)
        found.losses.limit = self._limit
        return found

    def _track(self, recipient: Recipient, stopped: threading.Event) -> None:
        progress, budgets = self._recipients.progress, Budget(self._interval, self._interval)
        budget, stuck_at = OwnBudget(progress, budgets, time.monotonic_ns()), -1
        while True:
            _, left = budget.look(time.monotonic_ns())
            pause = RECOVERY_SECONDS if stuck_at >= 0 else max(0.0, left)
            due = time.monotonic() + pause
            if stopped.wait(pause):
                return
            row, left = budget.look(time.monotonic_ns())
            at = self._recipients.step
            if stuck_at >= 0:
                if row.time != stuck_at:
                    stuck_at = -1
                    recipient.resolve(STUCK, f"training goes on at step {at}")
            elif time.monotonic() > due + LATENESS:  # this process was suspended, and so was training
                budget = OwnBudget(progress, budgets, time.monotonic_ns())
            elif left <= 0:
                stuck_at = row.time
                after = "before the first step" if at is None else f"after step {at}"
                seconds = (time.monotonic_ns() - row.time) / 1e9
                text = f"no step for {seconds:.4g} s; it may be saving, evaluating or compiling"
                recipient.send(STUCK, "hang", "critical", f"training may be stuck {after}", text, at)
