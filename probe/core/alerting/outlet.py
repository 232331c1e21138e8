"""Outlets: each channel with the alerts that it has not accepted yet, and its attempts to send them."""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any

from probe.core.alerting.channels import CHANNELS, Channel
from probe.core.alerting.channels.address import AddressError
from probe.core.alerting.channels.exchange import NotReceived
from probe.core.alerting.redaction import describe_error, redact
from probe.core.alerting.spool import SpooledAlert
from probe.core.config import schema
from probe.core.config.errors import ConfigError
from probe.core.messages import plural
from probe.core.records import SEVERITIES, Alert

SEND_SECONDS = 10.0
"""Longest time of an attempt."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
"""Time between two attempts: doubled after each, and multiplied by a random number between 0.5 and 1."""
MOST_WAITING = 50
"""Most alerts of a severity that wait for a channel; further ones are counted, and the number is sent."""
_random = secrets.SystemRandom()  # the generators of the training run stay as they are


class Attempt:
    """Call of a channel on a thread of its own, since no call for a name's address and no mail client can be ended from
    outside. Its end is put into a queue.

    Args:
        outlet: outlet that it belongs to.
        call: function that is called with the seconds left.
    """

    def __init__(self, outlet: Outlet, entries: Sequence[SpooledAlert], call: Callable[[float], None]) -> None:
        self.outlet, self.entries, self._call = outlet, tuple(entries), call
        self.omitted: Counter[str] = Counter()
        self.error: BaseException | None = None
        self.deadline = 0.0

    def start(self, seconds: float, ended: SimpleQueue[Any]) -> None:
        """Start the thread; where none can be started, as at the end of the interpreter, call here."""
        self.deadline = time.monotonic() + seconds
        thread = threading.Thread(target=self._run, args=(seconds, ended), name="probe alert", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._run(seconds, ended)

    def _run(self, seconds: float, ended: SimpleQueue[Any]) -> None:
        failure: BaseException | None = None
        try:
            self._call(seconds)
        except BaseException as error:  # noqa: BLE001 - whatever a channel raises is its failure
            failure = error
        self.error = failure
        ended.put(self)


class Outlet:
    """Channel, its name in messages, and the alerts that wait for it."""

    def __init__(self, label: str, channel: Channel, least: str) -> None:
        self.label, self.channel = label, channel
        self.waiting: list[SpooledAlert] = []
        self.omitted: Counter[str] = Counter()
        self.attempt: Attempt | None = None
        self.late: Attempt | None = None
        """Attempt that has not ended by its deadline; no other begins before it does."""
        self.tries, self.retry_at, self.held_until = 0, 0.0, 0.0
        self._least = SEVERITIES.index(least)

    def admits(self, severity: str) -> bool:
        """Return whether alerts of this severity are sent here."""
        return SEVERITIES.index(severity) >= self._least

    def add(self, entry: SpooledAlert) -> bool:
        """Queue an alert; return false if it is only counted, since too many wait."""
        severity = entry.alert.severity
        if sum(each.alert.severity == severity for each in self.waiting) < MOST_WAITING:
            self.waiting.append(entry)
            return True
        self.omitted[severity] += 1
        return False

    def omit(self, numbers: Mapping[str, int]) -> None:
        """Count alerts that are not sent one by one."""
        self.omitted.update({severity: number for severity, number in numbers.items() if self.admits(severity)})

    @property
    def idle(self) -> bool:
        """True if nothing waits."""
        return not (self.waiting or self.omitted)

    def next_time(self) -> float | None:
        """Return the time (monotonic) at which :meth:`begin` or :meth:`expire` has something to do; None for never."""
        if self.attempt is not None:
            return self.attempt.deadline
        return None if self.idle or self.late is not None else max(self.retry_at, self.held_until)

    def begin(self, now: float, seconds: float, ended: SimpleQueue[Any]) -> None:
        """Start an attempt if there is something to send and none is in progress."""
        if self.idle or self.attempt is not None or self.late is not None or now < max(self.retry_at, self.held_until):
            return
        alerts = [*(entry.alert for entry in self.waiting), *omission(self.omitted)]
        attempt = Attempt(self, self.waiting, lambda left: self.channel.send(alerts, left))
        attempt.omitted = self.omitted.copy()
        self.attempt = attempt
        attempt.start(seconds, ended)

    def expire(self, now: float) -> NotReceived | None:
        """Give up an attempt whose time is over; return its failure."""
        attempt = self.attempt
        if attempt is None or now < attempt.deadline + 0.1:  # a channel that keeps its time reports more
            return None
        self.attempt, self.late = None, attempt
        return self._failed(now, NotReceived("not received in time"))

    def end(self, attempt: Attempt, now: float) -> tuple[Sequence[SpooledAlert], NotReceived | None]:
        """Take note of the end of an attempt; return the alerts that were accepted, or its failure."""
        late = attempt is self.late
        self.attempt, self.late = None, None
        if attempt.error is None:
            accepted = [entry for entry in attempt.entries if entry in self.waiting]
            self.waiting = [entry for entry in self.waiting if entry not in accepted]
            self.omitted = self.omitted - attempt.omitted
            self.tries, self.retry_at = 0, 0.0
            return accepted, None
        return (), None if late else self._failed(now, attempt.error)

    def hurry(self) -> None:
        """Try again at once, unless the receiver has set a time."""
        self.retry_at = 0.0

    def _failed(self, now: float, error: BaseException) -> NotReceived:
        pause = min(FIRST_PAUSE * 2.0 ** min(self.tries, 30), LONGEST_PAUSE)
        self.tries += 1
        self.retry_at = now + pause * _random.uniform(0.5, 1.0)
        wait = error.retry_after if isinstance(error, NotReceived) else None
        self.held_until = now + wait if wait is not None else self.held_until
        text = redact(str(error)) if isinstance(error, NotReceived) else describe_error(error)
        return NotReceived(text, wait)  # without the traceback and the causes, which may hold the address


def omission(numbers: Mapping[str, int]) -> list[Alert]:
    """Return an alert with the number of alerts that were counted only; none if there are none."""
    total = sum(numbers.values())
    if not total:
        return []
    worst = max((each for each in numbers if numbers[each]), key=SEVERITIES.index)
    each = ", ".join(f"{numbers[name]} {name}" for name in reversed(SEVERITIES) if numbers.get(name))
    title = f"{total} further {plural(total, 'alert')}, counted only"
    return [Alert("omitted", "omitted", worst, title, each, {}, time.time())]  # type: ignore[arg-type]


def queue_again(entry: SpooledAlert, outlets: Sequence[Outlet]) -> None:
    """Choose the channels of an alert of an earlier run: those that had not accepted it, by their names; if the
    configuration has none of them any more, all that admit its severity."""
    known = {outlet.label for outlet in outlets}
    if not entry.pending & known:
        entry.pending = {outlet.label for outlet in outlets if outlet.admits(entry.alert.severity)}
    entry.pending &= known


def opened(settings: schema.AlertSettings, source: str = "the given configuration") -> list[Outlet]:
    """Open the channels of a configuration.

    Raises:
        ConfigError: with all addresses, files and variables that cannot be used.
    """
    outlets: list[Outlet] = []
    problems: list[str] = []
    for number, each in enumerate(settings.channels):
        try:
            channel = CHANNELS[each.channel](each.args)
            outlets.append(Outlet(f"{each.channel}[{number}]", channel, each.severity))
        except AddressError as error:
            at = f"alert.channels[{number}].args"
            problems += [f"{at}{'.' if key else ''}{key}: {redact(sentence)}" for key, sentence in error.problems]
    if problems:
        raise ConfigError(source, problems)
    return outlets
