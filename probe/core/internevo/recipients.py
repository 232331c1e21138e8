"""Webhooks that receive the messages of a run, each with the alerts that wait for it; and the end of the process."""

from __future__ import annotations

import hashlib
import math
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from probe.core.alerting.alerts import Alerts
from probe.core.alerting.channels.address import AddressError, is_url
from probe.core.alerting.channels.exchange import require_client
from probe.core.alerting.redaction import register_address
from probe.core.config import schema
from probe.core.door import attempt
from probe.core.faults import Faults
from probe.core.launch import RANKS, launched
from probe.core.monitor.alarms import MOST_TRACEBACK, QUIET_STEPS, Cause, job_name
from probe.core.monitor.process_exit import Endings
from probe.core.records import Alert, Severity
from probe.core.run_state.progress import Progress
from probe.core.storage.run_directory import output_root

GROUP_SECONDS = 1.0
"""Time after an alert within which further ones join its message."""
GRACE_SECONDS = 5.0
"""Longest time in seconds that the end of a run waits for deliveries; the rest is on disk and sent by the next run."""
LOSS_RATIO = 1.5
"""Default of ``loss_spike_limit``."""
BOT_VARIABLE = "PROBE_FEISHU_SECRET"
"""Environment variable with the secret of the bots' signature verification."""
NOT_FINITE, SPIKE = "loss nan", "loss spike"
"""Names of the two matters."""


def checked_webhook(address: str, argument: str) -> str:
    """Return ``address`` without spaces around it, and register it as a secret.

    Raises:
        ValueError: if it is no HTTP address; it is not shown.
        ImportError: if httpx is not installed.
    """
    expected = f"{argument}: expected an address that begins with http:// or https:// and has a host"
    if not isinstance(address, str):
        raise ValueError(f"{expected}, got {type(address).__name__}")
    if not is_url(found := address.strip()):
        raise ValueError(f"{expected}, got a text of {len(address)} characters")
    register_address(found)
    try:
        require_client("feishu")
    except AddressError as error:
        raise ImportError(error.problems[0][1]) from None
    return found


def signed(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the arguments by which messages to Feishu are signed; none without a secret."""
    return {"secret_variable": BOT_VARIABLE} if environ.get(BOT_VARIABLE) else {}


class Recipient:
    """Webhook and its alerts.

    Args:
        address: checked address.
    """

    def __init__(self, address: str, job: str, rank: int, faults: Faults) -> None:
        channel = {"channel": "feishu", "severity": "info", "args": {"url": address, **signed(os.environ)}}
        settings = schema.AlertSettings.model_validate({"channels": [channel], "group_seconds": GROUP_SECONDS})
        directory = output_root(os.environ).absolute()
        self._alerts = Alerts(settings, job=job, rank=rank, directory=directory, faults=faults)
        self._job, self.rank = job, rank
        self._prefix = (
            f"{job} {hashlib.sha256(address.encode()).hexdigest()[:8]}"  # one file for each address and matter
        )
        self.losses = LossRatio(LOSS_RATIO)
        self.sigterm_wanted = False
        """True if SIGTERM is reported."""
        self.tracked = False
        """True if a tracker sends it the losses of the run."""

    def check(self) -> None:
        """Check in the background that the address answers, and send what an earlier run could not."""
        self._alerts.start()

    def send(
        self, name: str, kind: str, severity: Severity, title: str, text: str = "", step: int | None = None
    ) -> None:
        """Queue an alert about the matter ``name``."""
        labels = {} if step is None else {"step": str(step)}
        self._alerts.send(Alert(f"{self._prefix} {name}", kind, severity, title, text, labels, time.time()))

    def resolve(self, name: str, text: str) -> None:
        """Queue the notice that a matter has ended."""
        self._alerts.resolve(f"{self._prefix} {name}", text)

    def judge(self, step: int, loss: float) -> None:
        """Queue alerts about a loss that is none or has risen too much."""
        for notice in self.losses.judge(step, loss):
            if notice.resolved:
                self.resolve(notice.name, notice.text)
            else:
                self.send(notice.name, "run", notice.severity, notice.title, notice.text, step)

    def interrupted(self, text: str, step: int | None) -> None:
        """Queue an alert about an exception; ``text`` is its traceback, or its last line alone."""
        lines = text.strip().splitlines() or ["exception without a text"]
        name = lines[-1].partition(":")[0][:80]
        at = "before the first step" if step is None else f"at step {step}"
        shown = "\n".join(lines[-MOST_TRACEBACK:])
        self.send(f"exception {name} {step}", "exception", "critical", f"{name} {at} on rank {self.rank}", shown, step)

    def terminated(self, step: int | None) -> None:
        """Queue an alert about SIGTERM."""
        text = "the process was asked to end (SIGTERM): a launcher, a scheduler or another rank's failure"
        at = "before the first step" if step is None else f"at step {step}"
        self.send("sigterm", "sigterm", "warning", f"SIGTERM {at}", text, step)

    def flush(self, seconds: float) -> None:
        """Wait at most ``seconds`` until all is sent."""
        self._alerts.flush(seconds)

    def close(self, seconds: float) -> None:
        """Send what waits within ``seconds``, and end."""
        self._alerts.close(seconds)


class Recipients:
    """Webhooks in use in this process. They end with it: at SIGTERM and at an exception with an alert."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.rank = launched(os.environ, RANKS, 0)
        self.job: str | None = None
        """Name of the job; None: the name of the script."""
        self.step: int | None = None
        """Last step that the program has reported."""
        self.progress = Progress(None, self.rank, 1, "")
        """Progress by the steps that it has reported."""
        self._known: dict[str, Recipient] = {}
        self._endings: Endings | None = None
        self._lock = threading.RLock()  # reentrant: a signal handler may interrupt its holder

    def __iter__(self) -> Iterator[Recipient]:
        return iter(tuple(self._known.values()))

    def of(self, address: str, argument: str = "alert_address") -> Recipient:
        """Return the recipient with this address.

        Raises:
            ValueError: if the address is none.
            ImportError: if httpx is not installed.
        """
        if isinstance(address, str) and (found := self._known.get(address)) is not None:
            return found
        address = checked_webhook(address, argument)
        with self._lock:
            if address not in self._known:
                made = Recipient(address, job_name(self.job), self.rank, self.faults)
                self._endings = self._endings or Endings(self._ended, self._survived)
                self._known[address] = made
            return self._known[address]

    def report(self, step: int, loss: float, address: str | None) -> None:
        """Note a step, and judge its loss for ``address`` and for each webhook with a tracker."""
        self.step = step
        self.progress.step(self.progress.row().step + 1)  # the program's own numbers may be of any kind
        asked = self.of(address) if address else None
        for each in self:
            if each is asked or each.tracked:
                each.judge(step, loss)

    def begin(self, job: str | None) -> None:
        """Begin a run with this name of its job. The steps of an earlier one, and the time between the two, say nothing
        about it, unless a tracker follows both."""
        self.job, self.step = job, None
        if not self._known:
            self.progress.close()
            self.progress = Progress(None, self.rank, 1, "")

    @property
    def catches_sigterm(self) -> bool:
        """True if SIGTERM is caught for these webhooks."""
        return self._endings is not None and self._endings.catches_sigterm

    def attempt(self, work: Callable[..., object], *args: Any) -> None:
        """Call ``work``; an error in it is counted, since training has begun."""
        attempt(self.faults, "monitor_manager", work, *args)

    def close(self, tracked: bool = False) -> None:
        """Send all that waits within :data:`GRACE_SECONDS`, and forget the webhooks; those with a tracker only if
        ``tracked``."""
        endings = None
        with self._lock:
            left = [each for each in self if tracked or not each.tracked]
            self._known = {address: each for address, each in self._known.items() if each not in left}
            if not self._known:
                endings, self._endings = self._endings, None
        if endings is not None:
            self.attempt(endings.remove)
        self._each(left, Recipient.close, GRACE_SECONDS)

    def _each(self, those: Iterable[Recipient], work: Callable[[Recipient, float], None], seconds: float) -> None:
        """Call ``work`` with each recipient and the seconds that are left of ``seconds`` for all."""
        deadline = time.monotonic() + seconds
        for each in those:
            left = max(0.0, deadline - time.monotonic())
            self.attempt(work, each, left)

    def _alert_sigterm(self) -> None:
        for each in self:
            if each.sigterm_wanted:
                self.attempt(each.terminated, self.step)

    def _ended(self, cause: Cause, error: BaseException | None) -> None:
        if cause == "sigterm":
            self._alert_sigterm()
        elif cause == "exception" and error is not None:
            text = "".join(traceback.format_exception(error))
            for each in self:
                self.attempt(each.interrupted, text, self.step)
        self.close(tracked=True)

    def _survived(self) -> None:
        """Send what waits at a SIGTERM that the process may survive."""
        self._alert_sigterm()
        self._each(self, Recipient.flush, GRACE_SECONDS)


_recipients: dict[int, Recipients] = {}


def recipients() -> Recipients:
    """Return the webhooks of this process; a forked child has its own."""
    here = os.getpid()
    if here not in _recipients:
        _recipients.setdefault(here, Recipients())
    return _recipients[here]


class LossNotice(NamedTuple):
    """Begin or end of a matter about the loss."""

    name: str
    severity: Severity
    title: str
    text: str
    resolved: bool = False


class LossRatio:
    """Judge of each loss. While a matter is open, its repetitions yield nothing.

    Args:
        limit: multiple of the previous loss above which a loss is a spike.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._previous: float | None = None
        """Previous finite loss."""
        self._not_finite = self._spiking = False
        self._quiet = 0

    def judge(self, step: int, loss: float) -> Iterator[LossNotice]:
        """Yield the matters that begin or end with this loss."""
        before = "none before" if self._previous is None else f"the last one before: {self._previous:.6g}"
        if not math.isfinite(loss):
            if not self._not_finite:
                self._not_finite = True
                yield LossNotice(NOT_FINITE, "critical", f"loss {loss} at step {step}", f"finite losses: {before}")
            return
        if self._not_finite:
            self._not_finite = False
            yield LossNotice(NOT_FINITE, "info", "", f"loss {loss:.6g} at step {step}", resolved=True)
        spike = self._previous is not None and loss > self._bound(self._previous)
        self._quiet = 0 if spike else self._quiet + 1
        if spike and not self._spiking:
            self._spiking = True
            text = f"{before}, the limit: {self.limit:g} times that"
            yield LossNotice(SPIKE, "warning", f"loss spike: {loss:.6g} at step {step}", text)
        elif self._spiking and self._quiet >= QUIET_STEPS:
            self._spiking = False
            yield LossNotice(SPIKE, "info", "", f"no spike in {QUIET_STEPS} steps up to step {step}", resolved=True)
        self._previous = loss

    def _bound(self, previous: float) -> float:
        """Return the largest loss that is no spike: a multiple of the previous one. Above a negative loss the distance
        is that above a positive loss of the same magnitude."""
        return self.limit * previous if previous >= 0 else previous + (self.limit - 1) * -previous
