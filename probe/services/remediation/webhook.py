"""Parser of the webhook of Alertmanager, version 4 of its format. A request of another sender may leave out the version
and times; it needs ``alerts`` with ``status`` and ``labels``.

Format: https://prometheus.io/docs/alerting/latest/configuration/#webhook_config
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

from probe.core.times import EARLIEST, LATEST
from probe.services.remediation.planned_action import FiringAlert, shown

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
    """Parse the body of a request.

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
    starts = _time(alert["startsAt"], f"{place}.startsAt") if "startsAt" in alert else time.time()
    return FiringAlert(labels["alertname"], labels, starts, _identity(alert, labels, place), status == "firing")


def _time(text: Any, place: str) -> float:
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
