"""InternEvo's monitor of a run: begin and end, steps, losses, exceptions and SIGTERM, as messages to Feishu.

The names, arguments and defaults are those of its documentation; ``probe.core.internevo`` has the parts.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

from probe.core.internevo.recipients import LOSS_RATIO, Recipient, recipients
from probe.core.internevo.tracker import INTERVAL_SECONDS, MonitorTracker, positive

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
