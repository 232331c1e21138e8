"""Work of the service between HTTP and the actions: admission of alerts, limits, history."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, NoReturn

from probe.core.alerting.redaction import redact
from probe.core.messages import printable
from probe.core.times import EARLIEST, LATEST, utc_text
from probe.services.remediation.child_process import kill_left_over
from probe.services.remediation.planned_action import FiringAlert, RefusedAlertError, shown
from probe.services.remediation.settings import ConfiguredAction, ServiceOptions
from probe.services.remediation.store import (
    ANSWER_SECONDS,
    ActionRow,
    ActionState,
    ActionStore,
    Admission,
    within,
)
from probe.services.remediation.workers import ActionWorkers, QueuedAction
from probe.services.web.answers import Reply

_log = logging.getLogger("probe.remediation")

SHOWN = 100
"""Entries that ``/history`` returns."""
RETRY_SECONDS = 5
"""Seconds after which a sender may try again."""


class _Admitted(NamedTuple):
    """Result of the admission of one request."""

    rows: list[ActionRow]
    queued: list[QueuedAction]
    repeats: int
    left_out: int
    """Actions for which the queue had no room."""


class RemediationService:
    """Store, workers and the table of actions behind the endpoints.

    Raises:
        StoreError: if the database cannot be used.
    """

    def __init__(self, options: ServiceOptions) -> None:
        self.options, self._limits = options, options.settings.limits
        self.counts: Counter[tuple[str, ...]] = Counter()
        """Answers by status, alerts by result, actions by name, state and dry run."""
        self.last_webhook = 0.0
        """Time of the last webhook that was understood, in seconds since the epoch."""
        self.store = ActionStore(options.database)
        self._admitting, self._counting = threading.Lock(), threading.Lock()
        self._interrupt_left_over()
        self.workers = ActionWorkers(self.store, self._limits.workers, self._report)

    def receive(self, data: bytes) -> Reply:
        """Admit the alerts of a request. Actions are carried out later, on other threads.

        Raises:
            sqlite3.Error: if the history cannot be written; nothing is done then.
        """
        try:
            alerts = parsed(data)
        except MalformedWebhookError as error:
            return Reply(400, {"error": str(error)})
        self.last_webhook = time.time()
        for alert in (candidate for candidate in alerts if not candidate.firing):
            self._count("alerts", "resolved")
            _log.info("alert=%s fingerprint=%s resolved: nothing is undone", _text(alert.name), alert.fingerprint)
        with within(self._admitting, ANSWER_SECONDS):
            admitted = self._admit([alert for alert in alerts if alert.firing])
            for row in admitted.rows:
                self._count_action(row, row.state)
                log_row(row, row.state)
            for action in admitted.queued:
                self.workers.add(action)
        self._count("alerts", "known", number=admitted.repeats)
        body = {"actions": [_brief(row) for row in admitted.rows], "known": admitted.repeats}
        if admitted.left_out:
            problem = f"the queue had no room for {admitted.left_out} of the actions; send the request again"
            return Reply(503, {**body, "error": problem}, RETRY_SECONDS)
        return Reply(202 if admitted.queued else 200, body)

    def works(self) -> bool:
        """Return whether the history can be written and the workers live."""
        try:
            self.store.pulse(time.time())
        except sqlite3.Error as error:
            _log.error("%s: cannot be written: %s", self.store.path, error)
            return False
        return self.workers.alive

    def history(self) -> list[dict[str, Any]]:
        """Return the last entries in their order."""
        return [entry_of(row) for row in self.store.last(SHOWN)]

    def close(self) -> None:
        """End the actions and close the database."""
        self.workers.close()
        self.store.close()

    def _admit(self, alerts: Sequence[FiringAlert]) -> _Admitted:
        rows, queued, repeats, left_out = list[ActionRow](), list[QueuedAction](), 0, 0
        room = self._limits.waiting - self.workers.waiting
        with self.store.admission() as admission:
            for alert in alerts:
                actions = [action for action in self.options.actions if action.concerns(alert)]
                if not actions and self._is_known(admission, alert, ""):
                    repeats += 1
                elif not actions:
                    text = "no action is configured for this alert"
                    rows.append(admission.insert(_new_row(alert, "", "", False, "ignored", text)))
                for action in actions:
                    if self._is_known(admission, alert, action.name):
                        repeats += 1
                    elif len(queued) >= room:
                        left_out += 1
                    else:
                        row, task = self._plan(admission, alert, action)
                        rows.append(row)
                        queued += [] if task is None else [task]
            admission.prune(self._limits.history, time.time())
        return _Admitted(rows, queued, repeats, left_out)

    def _is_known(self, admission: Admission, alert: FiringAlert, action: str) -> bool:
        return admission.known(alert.fingerprint, action, alert.starts, self._limits.same_alert_seconds)

    def _plan(
        self, admission: Admission, alert: FiringAlert, action: ConfiguredAction
    ) -> tuple[ActionRow, QueuedAction | None]:
        """Plan an action, or record why it is refused."""
        target = ""
        try:
            self._check_host(alert, action)
            planned = action.action.plan(alert)
            target = planned.target
            self._check_limits(admission, action, target)
        except RefusedAlertError as error:
            return admission.insert(_new_row(alert, action.name, target, action.dry_run, "refused", str(error))), None
        row = admission.insert(_new_row(alert, action.name, target, action.dry_run, "planned", planned.description))
        return row, QueuedAction(row.id, action.name, planned, action.dry_run, action.settings.seconds)

    def _check_host(self, alert: FiringAlert, action: ConfiguredAction) -> None:
        """Check that an action on this machine is about this machine."""
        if not action.by_host:
            return
        label = self.options.settings.host.label
        if host_in(alert.labels.get(label, "")) not in self.options.host_names:
            names = ", ".join(sorted(self.options.host_names))
            raise RefusedAlertError(
                f"label {label}: expected this machine ({names}), got {shown(alert.labels.get(label, ''))}; "
                "host.names has its names"
            )

    def _check_limits(self, admission: Admission, action: ConfiguredAction, target: str) -> None:
        now, settings = time.time(), action.settings
        counts = (
            ("limits.per_hour", self._limits.per_hour, admission.recent(now, action.dry_run)),
            ("per_hour", settings.per_hour, admission.recent(now, action.dry_run, action.name)),
            (
                f"per_target_per_hour for {target}",
                settings.per_target_per_hour,
                admission.recent(now, action.dry_run, action.name, target),
            ),
        )
        for name, most, number in counts:
            if number >= most:
                raise RefusedAlertError(f"limit reached: {name} is {most}, and {number} were planned within the hour")

    def _interrupt_left_over(self) -> None:
        """Record the actions that an earlier process of this service has left behind; none is repeated."""
        for row in self.store.unfinished():
            if row.started is None:
                message = "the service ended before it began; it begins if the alert is sent again"
            else:
                message = f"the service was killed while it was under way; it is not repeated: {row.message}"
                if row.process and kill_left_over(row.process):
                    message += "; its program ran on, and was killed now"
            self.store.finish(row.id, "interrupted", message, time.time())
            self._report(row.id, "interrupted")

    def _report(self, number: int, state: ActionState) -> None:
        row = self.store.row(number)
        if row is not None:
            self._count_action(row, state)
            log_row(row, state)

    def _count_action(self, row: ActionRow, state: ActionState) -> None:
        self._count("actions", row.action, state, str(row.dry_run).lower())

    def _count(self, *names: str, number: int = 1) -> None:
        with self._counting:
            self.counts[names] += number


def host_in(value: str) -> str:
    """Return the host of a label such as ``node1:9100`` in lower case."""
    if value.startswith("["):
        return value[1:].partition("]")[0].lower()
    host, colon, port = value.rpartition(":")
    return (host if colon and port.isdecimal() and ":" not in host else value).lower()


def entry_of(row: ActionRow) -> dict[str, Any]:
    """Return an entry as ``/history`` has it."""
    return {
        "id": row.id,
        "timestamp": _time(row.time),
        "alert_name": row.alert,
        "alert_labels": row.labels,
        "fingerprint": row.fingerprint,
        "starts_at": _time(row.starts),
        "action": row.action or None,
        "target": row.target or None,
        "dry_run": row.dry_run,
        "state": row.state,
        "success": row.success,
        "message": row.message,
        "duration_seconds": row.seconds,
    }


def log_row(row: ActionRow, state: ActionState) -> None:
    """Log an entry on one line."""
    level = logging.WARNING if state in ("failed", "refused", "interrupted") else logging.INFO
    text = " ".join(
        f"{name}={json.dumps(value, ensure_ascii=False)}"
        for name, value in (
            *(("id", row.id), ("state", state), ("alert", row.alert), ("action", row.action or None)),
            *(("target", row.target or None), ("dry_run", row.dry_run), ("success", row.success)),
            *(("seconds", row.seconds), ("message", row.message)),
        )
        if value is not None
    )
    _log.log(level, "%s", printable(redact(text)))


def _brief(row: ActionRow) -> dict[str, Any]:
    return {"id": row.id, "alert": row.alert, "action": row.action or None, "state": row.state}


def _new_row(
    alert: FiringAlert, action: str, target: str, dry_run: bool, state: ActionState, message: str
) -> ActionRow:
    labels = {_text(name): _text(value) for name, value in alert.labels.items()}
    return ActionRow(
        *(0, time.time(), _text(alert.name), labels, alert.fingerprint, alert.starts),
        *(action, _text(target), dry_run, state, printable(redact(message))),
    )


def _text(text: str) -> str:
    return printable(redact(text[:2_000]))


def _time(seconds: float) -> str:
    return utc_text(seconds).replace("Z", "+00:00")


MOST_ALERTS = 1_000
"""Most alerts of one request."""
MOST_LABELS = 200
"""Most labels of one alert."""
VERSION = "4"
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)
_FINGERPRINT = re.compile(r"[0-9A-Za-z_-]{1,64}")


class MalformedWebhookError(ValueError):
    """Error of a body that is no webhook of Alertmanager: place, expected and found value."""


def parsed(data: bytes) -> list[FiringAlert]:
    """Parse the body of a request: the webhook of Alertmanager, version 4 of its format. Another sender may leave out
    the version and times. Format: https://prometheus.io/docs/alerting/latest/configuration/#webhook_config

    Raises:
        MalformedWebhookError: naming the first problem.
    """
    body = _json(data)
    if not isinstance(body, dict):
        raise _wrong("body", "an object", body)
    if body.get("version", VERSION) != VERSION:
        raise _wrong("version", f'"{VERSION}", or none', body["version"])
    alerts = body.get("alerts")
    if not isinstance(alerts, list):
        raise _wrong("alerts", "a list", alerts)
    if len(alerts) > MOST_ALERTS:
        expected = f"at most {MOST_ALERTS} alerts; set max_alerts in webhook_configs"
        raise MalformedWebhookError(f"alerts: expected {expected}, got {len(alerts)}")
    return [_alert(alert, f"alerts[{number}]") for number, alert in enumerate(alerts)]


def _json(data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_no_number)
    except RecursionError:
        raise MalformedWebhookError("body: expected JSON, got one nested too deeply") from None
    except UnicodeDecodeError:
        raise MalformedWebhookError("body: expected UTF-8") from None
    except json.JSONDecodeError as error:
        raise MalformedWebhookError(f"body: expected JSON: {error.msg} at character {error.pos}") from None
    except ValueError as error:  # NaN, or a number of thousands of digits
        raise MalformedWebhookError(f"body: expected JSON: {str(error)[:100]}") from None


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _alert(alert: Any, place: str) -> FiringAlert:
    if not isinstance(alert, dict):
        raise _wrong(place, "an object", alert)
    status = alert.get("status")
    if status not in ("firing", "resolved"):
        raise _wrong(f"{place}.status", '"firing" or "resolved"', status)
    labels = alert.get("labels")
    if not isinstance(labels, dict) or len(labels) > MOST_LABELS:
        raise _wrong(f"{place}.labels", f"an object of at most {MOST_LABELS} labels", labels)
    for name, value in labels.items():
        if not isinstance(value, str):
            raise _wrong(f"{place}.labels.{name[:100]}", "a text", value)
    if not labels.get("alertname"):
        raise _wrong(f"{place}.labels.alertname", "the name of the alert", labels.get("alertname"))
    starts = _parsed_time(alert["startsAt"], f"{place}.startsAt") if "startsAt" in alert else time.time()
    return FiringAlert(labels["alertname"], labels, starts, _identity(alert, labels, place), status == "firing")


def _parsed_time(text: Any, place: str) -> float:
    match = _TIME.fullmatch(text) if isinstance(text, str) else None
    if not match:
        raise _wrong(place, "a time such as 2026-01-31T12:00:00Z", text)
    zone = "+00:00" if match[3] == "Z" else match[3]
    try:
        seconds = datetime.fromisoformat(match[1] + zone).timestamp() + float(match[2] or 0)
    except (ValueError, OverflowError):
        raise _wrong(place, "a time such as 2026-01-31T12:00:00Z", text) from None
    return min(max(seconds, EARLIEST), LATEST)  # the offset may lead out of the years 1 to 9999 in UTC


def _identity(alert: Mapping[str, Any], labels: Mapping[str, str], place: str) -> str:
    """Return the fingerprint; of an alert without one, which comes from another sender, a digest of its labels."""
    fingerprint = alert.get("fingerprint")
    if fingerprint is None:
        text = json.dumps(labels, sort_keys=True)
        return f"labels-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
    if not isinstance(fingerprint, str) or not _FINGERPRINT.fullmatch(fingerprint):
        raise _wrong(f"{place}.fingerprint", "a text of at most 64 letters and digits", fingerprint)
    return fingerprint


def _wrong(place: str, expected: str, value: object) -> MalformedWebhookError:
    if isinstance(value, str):
        got = shown(value)
    elif value is None:
        got = "nothing"
    else:
        got = {dict: "an object", list: "a list", bool: "a boolean"}.get(type(value), "a number")
    return MalformedWebhookError(f"{shown(place)[1:-1]}: expected {expected}, got {got}")
