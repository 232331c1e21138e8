"""InternEvo's monitor of a run: begin and end, steps, losses, exceptions and SIGTERM, as messages to Feishu.

The names, arguments and defaults are those of its documentation; ``probe.core.internevo`` has the parts.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, ClassVar

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


__all__ = ["MonitorManager", "MonitorTracker", "initialize_monitor_manager"]
_log = logging.getLogger("probe.alerts")
_WITHOUT_BLOCK = (
    "initialize_monitor_manager: nothing is monitored without a block; write `with initialize_monitor_manager(...) as "
    "manager:` around the training"
)


def initialize_monitor_manager(
    job_name: str | None = None, alert_address: str | None = None
) -> AbstractContextManager[MonitorManager]:
    """Monitor the run within the ``with`` block: its begin, end, exceptions and SIGTERM are sent to Feishu.

    An exception is raised again as it is. Without an address nothing is done.

    Args:
        job_name: name of the job; missing: the name of the script.
        alert_address: Feishu webhook.

    Raises:
        ValueError: if the address is none.
        ImportError: if httpx is not installed.
    """
    return _Block(_monitored(job_name, alert_address))


class _Block(AbstractContextManager["MonitorManager"]):
    """Block that is monitored; without ``with`` nothing is, which is logged."""

    def __init__(self, body: AbstractContextManager[MonitorManager]) -> None:
        self._body, self._is_entered = body, False

    def __enter__(self) -> MonitorManager:
        self._is_entered = True
        return self._body.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        return self._body.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name}: {_WITHOUT_BLOCK}")

    def __del__(self) -> None:
        if not self._is_entered:
            _log.warning(_WITHOUT_BLOCK)


@contextmanager
def _monitored(job_name: str | None, alert_address: str | None) -> Iterator[MonitorManager]:
    manager = MonitorManager()
    if not alert_address:
        recipients().job = job_name  # for heartbeats
        yield manager
        return
    manager.start_monitor(job_name, alert_address)
    try:
        yield manager
    except GeneratorExit:  # the block was never left
        raise
    except BaseException as error:
        if not (isinstance(error, SystemExit) and not error.code):
            manager.monitor_exception(alert_address, "".join(traceback.format_exception(error)))
        raise
    finally:
        manager.stop_monitor()


class MonitorManager:
    """Monitor of this process, of which there is one: ``MonitorManager()`` returns the same object everywhere.

    After :meth:`start_monitor` nothing here raises into training; what failed is counted in :attr:`faults`.

    Args:
        loss_spike_limit: multiple of the previous loss above which a loss is a spike.
    """

    _instance: ClassVar[MonitorManager | None] = None
    _process: int
    _address: str | None
    _tracker: MonitorTracker | None
    _limit: float
    _starts: int
    _interrupted: bool

    def __new__(cls, *args: Any, **kwargs: Any) -> MonitorManager:
        """Return the monitor of this process, made at the first call and in a forked child."""
        limit = _limit(*args, **kwargs)
        manager = cls._instance
        if manager is None or manager._process != os.getpid():
            manager = super().__new__(cls)
            manager._process, manager._address, manager._tracker = os.getpid(), None, None
            manager._limit, manager._starts, manager._interrupted = LOSS_RATIO, 0, False
            cls._instance = manager
        if limit is not None:
            manager._limit = limit
        return manager

    @property
    def faults(self) -> dict[str, int]:
        """Number of faults in alerts and monitoring, by place."""
        return recipients().faults.counts

    def monitor_loss_spike(
        self, alert_address: str | None = None, step_count: int = 0, cur_step_loss: float = 0.0
    ) -> None:
        """Note a step, and send an alert if its loss is not finite, or above the limit times the loss before.

        Call it at every step: a step that is not noted counts as none. While losses go on rising or being NaN no
        further alert is sent; one notice is, when that ends.

        Args:
            alert_address: Feishu webhook; missing: that of :meth:`start_monitor`.
            step_count: number of the step.
            cur_step_loss: loss of the step, a number on the host.
        """
        recipients().attempt(lambda: self._judge(alert_address or self._address, step_count, cur_step_loss))

    def monitor_exception(self, alert_address: str | None = None, excp_info: str | None = None) -> None:
        """Send an alert about an exception, with the last lines of its traceback. It is neither caught nor raised here.

        Args:
            alert_address: Feishu webhook; missing: that of :meth:`start_monitor`.
            excp_info: traceback; missing: that of the exception which is being handled.
        """
        self._interrupted = True
        text = str(excp_info) if excp_info is not None else traceback.format_exc() if sys.exc_info()[0] else ""
        if address := alert_address or self._address:
            receivers = recipients()
            receivers.attempt(lambda: receivers.of(address).interrupted(text, receivers.step))

    def handle_sigterm(self, alert_address: str | None = None) -> None:
        """Send an alert at SIGTERM; then the handler before this one runs, or the process ends as without it.

        Args:
            alert_address: Feishu webhook; missing: that of :meth:`start_monitor`.

        Raises:
            ValueError: if the address is none.
        """
        if not (address := alert_address or self._address):
            return
        receivers = recipients()
        receivers.of(address).sigterm_wanted = True
        if not receivers.catches_sigterm:
            _log.warning("SIGTERM is not caught: call handle_sigterm or start_monitor on the main thread")

    def start_monitor(
        self,
        job_name: str | None,
        alert_address: str | None,
        monitor_interval_seconds: float = INTERVAL_SECONDS,
        loss_spike_limit: float = LOSS_RATIO,
    ) -> None:
        """Send that training begins, and follow it: steps, losses, SIGTERM, the end of the process.

        Args:
            job_name: name of the job; None: the name of the script.
            alert_address: Feishu webhook; empty or None: nothing is done.
            monitor_interval_seconds: time within which a step is expected.
            loss_spike_limit: multiple of the previous loss above which a loss is a spike.

        Raises:
            ValueError: if the address is none, or a number is not positive.
            ImportError: if httpx is not installed.
        """
        interval = positive("monitor_interval_seconds", monitor_interval_seconds)
        limit = positive("loss_spike_limit", loss_spike_limit)
        self.stop_monitor()
        receivers = recipients()
        receivers.begin(job_name)
        if not alert_address:
            return
        tracker = MonitorTracker(alert_address, interval, limit)
        self._tracker, self._address, self._limit = tracker, alert_address, limit
        self._starts, self._interrupted = self._starts + 1, False
        recipient = receivers.of(alert_address)
        recipient.check()
        self._send_from_first_rank(recipient, "begin", "training has begun")
        tracker.run()
        self.handle_sigterm(alert_address)

    def stop_monitor(self) -> None:
        """Send that training has ended, unless an exception was reported last; deliver what waits within
        5 seconds, and end all threads."""
        receivers, tracker, address = recipients(), self._tracker, self._address
        self._tracker, self._address = None, None
        if tracker is not None:
            receivers.attempt(tracker.stop)
        if address is not None and not self._interrupted:
            at = "without a step" if receivers.step is None else f"after step {receivers.step}"
            receivers.attempt(
                lambda: self._send_from_first_rank(receivers.of(address), "end", f"training has ended {at}")
            )
        receivers.close()

    def _judge(self, address: str | None, step: int, loss: float) -> None:
        self._interrupted = False
        receivers = recipients()
        try:
            loss = float(loss)
        except (TypeError, ValueError):
            raise TypeError(f"monitor_loss_spike: cur_step_loss: expected a number, got {loss!r:.80}") from None
        if address:
            receivers.of(address).losses.limit = self._limit
        receivers.report(int(step), loss, address)

    def _send_from_first_rank(self, recipient: Recipient, kind: str, title: str) -> None:
        """Send the begin or the end, which all ranks share."""
        if recipient.rank == 0:
            recipient.send(f"{kind} {self._starts}", kind, "info", title)


def _limit(*args: Any, **kwargs: Any) -> float | None:
    """Return the limit among the arguments of ``MonitorManager``.

    Raises:
        TypeError: for further arguments.
    """
    unknown = [*map(repr, args[1:]), *(name for name in kwargs if name != "loss_spike_limit" or args)]
    if unknown:
        raise TypeError(f"MonitorManager: expected loss_spike_limit at most, got {', '.join(unknown)}")
    given = [*args, *kwargs.values()]
    return positive("loss_spike_limit", given[0]) if given else None
