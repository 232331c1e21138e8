"""Dispatcher: the one thread of alerts. It groups alerts, writes them to the spool, and starts the channels' attempts.

Only attempts have threads of their own, one at a time for each channel: a channel that does not answer delays no other,
not even at SIGTERM, when all of them share ten seconds.
"""

from __future__ import annotations

import _thread
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from probe.core.alerting.channels.exchange import NotReceived
from probe.core.alerting.channels.message import heading
from probe.core.alerting.matters import Matters, forget_old
from probe.core.alerting.outlet import MOST_WAITING, SEND_SECONDS, Attempt, Outlet, queue_again
from probe.core.alerting.redaction import describe_error, redact
from probe.core.alerting.spool import Spool, SpooledAlert, abandoned, without_secrets
from probe.core.door import attempt
from probe.core.faults import Faults
from probe.core.messages import complain
from probe.core.records import Alert
from probe.core.worker import Worker

CHECK_SECONDS = 5.0
"""Longest time in which an address is expected to answer when a run begins."""
END_SECONDS = 1.0
"""Longest time in which the thread ends, once its last flush is over."""
SPACING = 1.0
"""Least time between two messages of a run, whatever the time of grouping."""
COUNTED = "alerts: counted, not sent one by one"
GIVEN_UP = "alerts: refused by the receiver for good"
"""Kinds of losses that are counted."""

MOST_NAMED = 5
"""Most alerts that are named on standard error."""
WHERE = "alerts"
"""Place under which failures are counted."""

_log = logging.getLogger("probe.alerts")


class Resolution(NamedTuple):
    """End of a matter."""

    key: str
    text: str


class Omission(NamedTuple):
    """Alert for which the queue had no room."""

    severity: str


class Start:
    """Request to check the addresses."""


class Flush:
    """Request to send everything now; its lock is released when that is done, or when the time is over."""

    def __init__(self, deadline: float, last: bool) -> None:
        self.deadline, self.last = deadline, last
        self.complete = False
        self.done = _thread.allocate_lock()
        self.done.acquire()


class Dispatcher:
    """Loop over a queue of alerts and requests.

    Args:
        folder: folder of the spool; None if there is none.
        labels: facts that every alert gets unless it has them.
        channels: the channels in a configuration, addresses left out.
    """

    def __init__(
        self,
        outlets: Sequence[Outlet],
        group_seconds: float,
        folder: Path | None,
        matters: Matters,
        faults: Faults,
        labels: Mapping[str, str],
        channels: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._queue: SimpleQueue[Any] = SimpleQueue()  # put is safe within a signal handler
        self._outlets, self._group_seconds, self._folder = outlets, group_seconds, folder
        self._matters, self._faults, self._labels = matters, faults, labels
        self._group: list[SpooledAlert] = []
        self._omitted: Counter[str] = Counter()
        self._due: float | None = None
        self._earliest = self._renewed = 0.0
        self._spool = None if folder is None else Spool(folder, channels=channels)
        self._inherited: list[Spool] = []
        self._flushes: list[Flush] = []
        self._closed = self._began = False
        self._react: dict[type, Callable[[Any], None]] = {
            Alert: self._alert, Resolution: self._resolve, Omission: self._omit, Start: self._check,
            Flush: self._flush, Attempt: self._ended,
        }  # fmt: skip
        self._used = False
        self._looking = _thread.allocate_lock()  # nobody waits for it
        self._worker = Worker("probe alerts", WHERE, faults, look=self._look)

    @property
    def waiting(self) -> int:
        """Number of alerts and requests that wait."""
        return self._queue.qsize()

    def put(self, item: object) -> None:
        """Queue an alert or a request; on any thread, and inside a signal handler."""
        self._used = True
        self._queue.put(item)
        self._worker.wake()

    def flush(self, seconds: float, last: bool) -> bool:
        """Send everything now, and wait up to ``seconds``; return whether every channel has accepted all of it.

        Args:
            last: whether the dispatcher ends then.
        """
        complete = not self._used or self._flushed(Flush(time.monotonic() + seconds, last), seconds + 1.0)
        if last:
            self._worker.end()
            self._worker.join(END_SECONDS)
        return complete

    def _flushed(self, flush: Flush, seconds: float) -> bool:
        self.put(flush)
        until = time.monotonic() + seconds
        while not self._worker.wake() and flush.done.locked() and time.monotonic() < until:
            time.sleep(min(self._look() or 0.0, 0.01))  # where no thread can be started, the work is done here
        return flush.done.acquire(timeout=max(0.0, until - time.monotonic())) and flush.complete

    def _look(self) -> float | None:
        """React to what is queued, and advance; return the seconds until there is more to do."""
        if not self._looking.acquire(blocking=False):
            return 0.01
        try:
            if not self._began:
                self._began = True
                attempt(self._faults, WHERE, self._inherit)
            for _ in range(self._queue.qsize()):
                item = self._queue.get_nowait()
                attempt(self._faults, WHERE, self._react[type(item)], item)
            if self._closed:
                return None
            attempt(self._faults, WHERE, self._advance, time.monotonic())
            return self._pause()
        finally:
            self._looking.release()

    def _start(self, trial: Attempt) -> None:
        """Start an attempt on a thread of its own, since no call for a name's address and no mail client can be ended
        from outside. Where no thread can be started, as at the end of the interpreter, it is made here."""
        worker = Worker("probe alert", WHERE, self._faults, inline=True)
        worker.submit(partial(trial.run, self.put))
        worker.end()

    def _pause(self) -> float | None:
        times = [self._due, *(outlet.next_time() for outlet in self._outlets)]
        times += [flush.deadline for flush in self._flushes]
        times.append(self._renewal())
        deadlines = [at for at in times if at is not None]
        return max(0.01, min(deadlines) - time.monotonic()) if deadlines else None

    def _alert(self, alert: Alert) -> None:
        if alert.resolved:
            return self._resolve(Resolution(alert.key, alert.text))
        alert = without_secrets(alert._replace(labels={**self._labels, **alert.labels}))
        if alert.repeated:
            return self._matters.take_over(alert)
        if self._matters.is_open(alert.key):
            return None
        if sum(entry.alert.severity == alert.severity for entry in self._group) >= MOST_WAITING:
            return self._omit(Omission(alert.severity))
        if alert.lasting and not self._matters.lasts:
            self._renewed = time.monotonic()
        return self._add(alert) if self._matters.open(alert) else None

    def _resolve(self, resolution: Resolution) -> None:
        notice = self._matters.resolve(redact(resolution.key), resolution.text)
        if notice is not None:
            self._add(without_secrets(notice))

    def _omit(self, omission: Omission) -> None:
        self._omitted[omission.severity] += 1
        self._faults.lost(COUNTED, 1)
        self._wait_for_group()

    def _add(self, alert: Alert) -> None:
        """Spool an alert and put it into the group; the first one begins the time of the group."""
        pending = {outlet.label for outlet in self._outlets if outlet.admits(alert.severity)}
        if not pending:
            return
        entry = SpooledAlert(alert, pending)
        if self._spool is not None:
            try:
                self._spool.put(entry)
            except OSError as error:  # a full disk: sent all the same
                self._faults.note("alerts: spool", error)
        self._group.append(entry)
        self._wait_for_group()

    def _wait_for_group(self) -> None:
        if self._due is None:
            self._due = max(time.monotonic() + self._group_seconds, self._earliest)

    def _advance(self, now: float) -> None:
        if self._due is not None and (now >= self._due or self._flushes):
            self._distribute(now)
        if (due := self._renewal()) is not None and now >= due:
            self._renew(now)
        for outlet in self._outlets:
            if (failure := outlet.expire(now)) is not None:
                self._note(outlet, failure)
            if (trial := outlet.begin(now, self._seconds(now))) is not None:
                self._start(trial)
        for flush in [*self._flushes]:
            if self._settled() or now >= flush.deadline:
                self._release(flush)

    def _renewal(self) -> float | None:
        """Return the time (monotonic) at which lasting alerts are sent again; None if no receiver needs that."""
        periods = [period for outlet in self._outlets if (period := outlet.renewal_seconds) is not None]
        return self._renewed + min(periods) if periods and self._matters.lasts else None

    def _renew(self, now: float) -> None:
        self._renewed = now
        for alert in self._matters.lasting():
            for outlet in self._outlets:
                if outlet.renewal_seconds is not None:
                    outlet.renew(alert)

    def _seconds(self, now: float) -> float:
        """Return the time of an attempt that begins now: what is left if somebody waits for it."""
        seconds = max((flush.deadline for flush in self._flushes), default=now + SEND_SECONDS) - now
        return max(0.1, min(SEND_SECONDS, seconds))

    def _distribute(self, now: float) -> None:
        group = _causes_first(self._group)
        for outlet in self._outlets:
            for entry in group:
                if outlet.label in entry.pending:
                    self._hand(outlet, entry)
            outlet.omit(self._omitted)
        self._group, self._omitted, self._due = [], Counter(), None
        self._earliest = now + SPACING

    def _hand(self, outlet: Outlet, entry: SpooledAlert) -> None:
        if not outlet.add(entry):
            self._faults.lost(COUNTED, 1)
            self._accept(entry, outlet)

    def _ended(self, trial: Attempt) -> None:
        outlet = trial.outlet
        if outlet not in self._outlets or trial not in (outlet.attempt, outlet.late):
            self._checked(trial)
            return
        ended = outlet.end(trial, time.monotonic())
        for entry in ended.accepted:
            self._accept(entry, outlet)
        for entry in ended.given_up:
            self._give_up(entry, outlet, ended.failure)
        if ended.failure is not None:
            self._note(outlet, ended.failure)

    def _give_up(self, entry: SpooledAlert, outlet: Outlet, failure: NotReceived | None) -> None:
        """Count and log an alert that a receiver refuses for good, and keep it for this channel no longer."""
        self._faults.lost(GIVEN_UP, 1)
        _log.error("alerts: %s refuses an alert for good, %s: %s", outlet.label, failure, heading(entry.alert))
        self._accept(entry, outlet)

    def _accept(self, entry: SpooledAlert, outlet: Outlet) -> None:
        try:
            if entry.spool is None:
                entry.pending.discard(outlet.label)
            else:
                entry.spool.accept(entry, outlet.label)
        except OSError as error:
            self._faults.note("alerts: spool", error)

    def _note(self, outlet: Outlet, failure: NotReceived) -> None:
        self._faults.note(f"alerts: {outlet.label}", failure)

    def _inherit(self) -> None:
        """Queue what earlier runs in this folder could not send."""
        if self._folder is None:
            return
        forget_old(self._folder)
        for spool in abandoned(self._folder):
            entries = [*spool.alerts()]
            if not entries:
                spool.close()
                continue
            self._inherited.append(spool)
            for entry in entries:
                queue_again(entry, self._outlets)
                for outlet in self._outlets:
                    if outlet.label in entry.pending:
                        self._hand(outlet, entry)

    def _check(self, _: Start) -> None:
        for outlet in self._outlets:
            self._start(Attempt(outlet, (), outlet.channel.check, CHECK_SECONDS))

    def _checked(self, check: Attempt) -> None:
        if check.error is not None:
            hint = "" if self._folder is None else f" Until then they are kept in {self._folder}."
            text = "alerts: %s does not answer: %s. Alerts will be sent as soon as it does.%s"
            _log.warning(text, check.outlet.label, describe_error(check.error), hint)

    def _flush(self, flush: Flush) -> None:
        if self._closed:  # by a call that was interrupted
            flush.complete = self._settled()
            flush.done.release()
            return
        self._flushes.append(flush)
        for outlet in self._outlets:
            outlet.hurry()

    def _settled(self) -> bool:
        return not self._group and not self._omitted and all(outlet.idle for outlet in self._outlets)

    def _release(self, flush: Flush) -> None:
        flush.complete = self._settled()
        self._flushes.remove(flush)
        if flush.last:
            self._closed = True
            self._name_undelivered()
            for spool in filter(None, [self._spool, *self._inherited]):
                spool.close()
        flush.done.release()

    def _name_undelivered(self) -> None:
        """Write on standard error which critical alerts no longer reach their channels in this process: a log may go
        nowhere."""
        undelivered = [*self._group, *(entry for outlet in self._outlets for entry in outlet.waiting)]
        titles = [*dict.fromkeys(heading(entry.alert) for entry in undelivered if entry.alert.severity == "critical")]
        if not titles:
            return
        names = "\n".join([*titles[:MOST_NAMED], *(["..."] if len(titles) > MOST_NAMED else [])])
        if self._folder is None:
            complain("not delivered, and lost:\n{alerts}", alerts=names)
        else:
            text = "not delivered; the next run with this output directory sends what is kept in {folder}:\n{alerts}"
            complain(text, folder=self._folder, alerts=names)


def _causes_first(group: Sequence[SpooledAlert]) -> list[SpooledAlert]:
    """Return the group with findings about tensors before alerts about numbers of the run from the same step on: a loss
    comes by the shorter path, and is bad because of the layer."""
    ordered: list[SpooledAlert] = []
    for entry in group:
        place, step = len(ordered), _step_of(entry.alert)
        if entry.alert.kind == "finding" and step is not None:
            follow = (
                n for n, earlier in enumerate(ordered) if earlier.alert.kind == "run" and _follows(earlier.alert, step)
            )
            place = next(follow, place)
        ordered.insert(place, entry)
    return ordered


def _follows(alert: Alert, step: int) -> bool:
    own_step = _step_of(alert)
    return own_step is not None and own_step >= step


def _step_of(alert: Alert) -> int | None:
    step = alert.labels.get("step", "")
    return int(step) if step.isdecimal() else None
