"""Outlets: each channel with the alerts that it has not accepted yet, and its attempts to send them."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from probe.core.alerting.channels import CHANNELS, Channel, RenewingChannel
from probe.core.alerting.channels.address import AddressError
from probe.core.alerting.channels.exchange import NotReceived, Refusal
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
OUTAGES = 3
"""Refusals in a row from which on a single alert may be their cause, rather than an outage."""
MOST_TRIES = 12
"""Attempts with an isolated alert after which it is given up, if the receiver accepts others."""
VALUE_ERRORS = (ValueError, TypeError, ArithmeticError, LookupError, AttributeError)
"""Errors in making a message of alerts; those of a network are of other kinds, or :class:`NotReceived`."""
_random = secrets.SystemRandom()  # the generators of the training run stay as they are


class Attempt:
    """Call of a channel.

    Args:
        outlet: outlet that it belongs to.
        call: function that is called with ``seconds``, the longest time of the attempt.
    """

    def __init__(
        self, outlet: Outlet, entries: Sequence[SpooledAlert], call: Callable[[float], None], seconds: float
    ) -> None:
        self.outlet, self.entries, self._call, self._seconds = outlet, tuple(entries), call, seconds
        self.omitted: Counter[str] = Counter()
        self.error: BaseException | None = None
        self.deadline = time.monotonic() + seconds

    def run(self, ended: Callable[[Attempt], None]) -> None:
        """Make the attempt, and pass it to ``ended`` with its error."""
        failure: BaseException | None = None
        try:
            self._call(self._seconds)
        except BaseException as error:  # noqa: BLE001 - whatever a channel raises is its failure
            failure = error
        self.error = failure
        ended(self)


class Ended(NamedTuple):
    """Outcome of an attempt."""

    accepted: Sequence[SpooledAlert] = ()
    given_up: Sequence[SpooledAlert] = ()
    """Alerts that the receiver refuses for good."""
    failure: NotReceived | None = None


class Isolation:
    """Alert that was refused when it was sent alone. It is sent alone again, on a clock of its own, so that it stands
    in no other's way.

    A first refusal may have been an outage: with the next message that is accepted the alert joins the others again.
    """

    def __init__(self) -> None:
        self.tries = 0
        self.joined = False
        """True if it has been among the others again since it was first refused."""
        self.accepted_since = False
        """True if the receiver has accepted others since."""
        self.retry_at = 0.0


class Outlet:
    """Channel, its name in messages, and the alerts that wait for it.

    All that waits goes in one message. If the receiver refuses it, half as many go in the next, until one that is
    refused alone is isolated, or given up if it is refused for good.
    """

    def __init__(self, label: str, channel: Channel, least: str) -> None:
        self.label, self.channel = label, channel
        self.waiting: list[SpooledAlert] = []
        self.omitted: Counter[str] = Counter()
        self.attempt: Attempt | None = None
        """Attempt in progress, before its deadline."""
        self.late: Attempt | None = None
        """Attempt that has failed by its deadline and whose thread has not ended yet; no other begins before it has."""
        self.tries = 0
        """Failures in a row."""
        self.retry_at = 0.0
        """Time (monotonic) of the next attempt after a failure."""
        self.held_until = 0.0
        """Time (monotonic) before which the receiver wants no message."""
        self._least = SEVERITIES.index(least)
        self._isolated: dict[SpooledAlert, Isolation] = {}
        self._suspects: dict[SpooledAlert, Isolation] = {}
        """Alerts that were isolated and have joined the others again."""
        self._most: int | None = None
        """Most alerts of the next message; None for all."""
        self._refusals = 0
        """Refusals in a row that may have been an outage."""
        self._accepts = False
        """True if the receiver has ever accepted a message."""

    def admits(self, severity: str) -> bool:
        """Return whether alerts of this severity are sent here."""
        return SEVERITIES.index(severity) >= self._least

    def add(self, entry: SpooledAlert) -> bool:
        """Queue an alert; return false if it is only counted, since too many wait."""
        severity = entry.alert.severity
        if sum(item.alert.severity == severity for item in self._joint()) < MOST_WAITING:
            self.waiting.append(entry)
            return True
        self.omitted[severity] += 1
        return False

    def renew(self, alert: Alert) -> None:
        """Queue the alert of a lasting matter again, unless it waits."""
        if self.admits(alert.severity) and all(alert.key != entry.alert.key for entry in self.waiting):
            self.add(SpooledAlert(alert, {self.label}))

    @property
    def renewal_seconds(self) -> float | None:
        """Time after which lasting alerts are sent again; None if the receiver needs none."""
        return self.channel.renewal_seconds() if isinstance(self.channel, RenewingChannel) else None

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
        if self.idle or self.late is not None:
            return None
        times = [self._time_of(isolation) for isolation in self._isolated.values()]
        times += [self.retry_at] if self.omitted or self._joint() else []
        return max(min(times), self.held_until)

    def begin(self, now: float, seconds: float) -> Attempt | None:
        """Return an attempt of ``seconds`` that is in progress from now on; None if there is nothing to send, or
        another is in progress."""
        if self.idle or self.attempt is not None or self.late is not None or now < self.held_until:
            return None
        joint = self._joint()
        if now >= self.retry_at and (joint or self.omitted):
            entries, omitted = joint[: self._most], self.omitted.copy()
        else:
            entries = [entry for entry, isolation in self._isolated.items() if now >= self._time_of(isolation)][:1]
            omitted = Counter()
        if not entries and not omitted:
            return None
        alerts = [*(entry.alert for entry in entries), *omission(omitted)]
        attempt = Attempt(self, entries, lambda seconds_left: self.channel.send(alerts, seconds_left), seconds)
        attempt.omitted = omitted
        self.attempt = attempt
        return attempt

    def expire(self, now: float) -> NotReceived | None:
        """Give up an attempt whose time is over; return its failure."""
        attempt = self.attempt
        if attempt is None or now < attempt.deadline + 0.1:  # a channel that keeps its time reports more
            return None
        self.attempt, self.late = None, attempt
        return self._failed(now, NotReceived("not received in time"))

    def end(self, attempt: Attempt, now: float) -> Ended:
        """Process the outcome of an attempt. One that is late has failed already, in :meth:`expire`: only its success
        counts."""
        late = attempt is self.late
        self.attempt, self.late = None, None
        if attempt.error is None:
            return Ended(self._accepted(attempt))
        if late:
            return Ended()
        entries, refusal = [entry for entry in attempt.entries if entry in self.waiting], refusal_of(attempt.error)
        if refusal == "none" or not entries:
            return Ended(failure=self._failed(now, attempt.error))
        return self._refused(entries, refusal, attempt.error, now)

    def hurry(self) -> None:
        """Try again at once, unless the receiver has set a time."""
        self.retry_at = 0.0
        for isolation in self._isolated.values():
            isolation.retry_at = 0.0

    def _joint(self) -> list[SpooledAlert]:
        """Return the alerts that wait, without the isolated ones."""
        return [entry for entry in self.waiting if entry not in self._isolated] if self._isolated else self.waiting

    def _accepted(self, attempt: Attempt) -> Sequence[SpooledAlert]:
        accepted = [entry for entry in attempt.entries if entry in self.waiting]
        self._forget(accepted)
        self.omitted = self.omitted - attempt.omitted
        self.tries, self.retry_at, self._refusals, self._accepts = 0, 0.0, 0, True
        self._most = None if self._most is None else 2 * self._most
        if not self._joint():
            self._most = None
        for entry, isolation in [*self._isolated.items()]:
            isolation.accepted_since = True
            if not isolation.joined:
                isolation.joined = True
                self._suspects[entry] = self._isolated.pop(entry)
        return accepted

    def _refused(self, entries: Sequence[SpooledAlert], refusal: Refusal, error: BaseException, now: float) -> Ended:
        """Halve the next message, or isolate or give up the only alert of this one."""
        if refusal == "refused" and entries[0] not in self._isolated:
            self._refusals += 1
            if self._refusals < OUTAGES:
                return Ended(failure=self._failed(now, error))
        if len(entries) > 1:
            self._most = len(entries) // 2
            if refusal == "final":
                return Ended(failure=_described(error))
            return Ended(failure=self._failed(now, error, FIRST_PAUSE))
        return self._isolate(entries[0], refusal, error, now)

    def _isolate(self, entry: SpooledAlert, refusal: Refusal, error: BaseException, now: float) -> Ended:
        isolation = self._isolated.get(entry) or self._suspects.pop(entry, None) or Isolation()
        isolation.tries += 1
        hopeless = refusal == "final" or (isolation.tries >= MOST_TRIES and isolation.accepted_since)
        if self._accepts and hopeless:
            self._forget([entry])
            return Ended((), [entry], _described(error))
        isolation.retry_at = now + _pause(isolation.tries)
        self._isolated[entry] = isolation
        surplus = [*self._isolated][:-MOST_WAITING]
        self._forget(surplus)
        pause = 0.0 if refusal == "final" or isolation.accepted_since else None
        return Ended((), surplus, self._failed(now, error, pause))

    def _time_of(self, isolation: Isolation) -> float:
        """Return the time of the next attempt with an isolated alert. As long as its refusal may have been an outage,
        that is not before the next attempt with the other alerts."""
        return isolation.retry_at if isolation.accepted_since else max(isolation.retry_at, self.retry_at)

    def _forget(self, entries: Sequence[SpooledAlert]) -> None:
        self.waiting = [entry for entry in self.waiting if entry not in entries]
        for entry in entries:
            self._isolated.pop(entry, None)
            self._suspects.pop(entry, None)

    def _failed(self, now: float, error: BaseException, pause: float | None = None) -> NotReceived:
        """Set the time of the next attempt: after ``pause``, or one that grows with each failure."""
        self.retry_at = now + (_pause(self.tries) if pause is None else pause)
        self.tries += pause is None
        failure = _described(error)
        self.held_until = now + failure.retry_after if failure.retry_after is not None else self.held_until
        return failure


def _pause(tries: int) -> float:
    return min(FIRST_PAUSE * 2.0 ** min(tries, 30), LONGEST_PAUSE) * _random.uniform(0.5, 1.0)


def _described(error: BaseException) -> NotReceived:
    """Return an error without the traceback and the causes, which may hold the address."""
    if isinstance(error, NotReceived):
        return NotReceived(redact(str(error)), error.retry_after, error.refusal)
    return NotReceived(describe_error(error), refusal=refusal_of(error))


def refusal_of(error: BaseException) -> Refusal:
    """Return what a failure of a channel says about the message. An error of a value is one in making the message of
    the alerts, which the next attempt would meet again."""
    if isinstance(error, NotReceived):
        return error.refusal
    return "final" if isinstance(error, VALUE_ERRORS) else "none"


def omission(numbers: Mapping[str, int]) -> list[Alert]:
    """Return an alert with the number of alerts that were counted only; none if there are none."""
    total = sum(numbers.values())
    if not total:
        return []
    worst = max((severity for severity in numbers if numbers[severity]), key=SEVERITIES.index)
    counts = ", ".join(f"{numbers[name]} {name}" for name in reversed(SEVERITIES) if numbers.get(name))
    title = f"{total} further {plural(total, 'alert')}, counted only"
    return [Alert("omitted", "omitted", worst, title, counts, {}, time.time())]  # type: ignore[arg-type]


def queue_again(entry: SpooledAlert, outlets: Sequence[Outlet]) -> None:
    """Choose the channels of an alert of an earlier run: by name, those that had not accepted it; if none of these is
    configured any more, all channels that admit its severity."""
    labels = {outlet.label for outlet in outlets}
    if not entry.pending & labels:
        entry.pending = {outlet.label for outlet in outlets if outlet.admits(entry.alert.severity)}
    entry.pending &= labels


def opened(settings: schema.AlertSettings, source: str = "the given configuration") -> list[Outlet]:
    """Open the channels of a configuration.

    Raises:
        ConfigError: with all addresses, files and variables that cannot be used.
    """
    outlets: list[Outlet] = []
    problems: list[str] = []
    for number, section in enumerate(settings.channels):
        try:
            channel = CHANNELS[section.channel](section.args)
            outlets.append(Outlet(f"{section.channel}[{number}]", channel, section.severity))
        except AddressError as error:
            at = f"alert.channels[{number}].args"
            problems += [f"{at}{'.' if key else ''}{key}: {redact(sentence)}" for key, sentence in error.problems]
    if problems:
        raise ConfigError(source, problems)
    return outlets
