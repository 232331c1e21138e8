"""Channel ``alertmanager``: the API of Prometheus Alertmanager, version 2.

https://github.com/prometheus/alertmanager/blob/main/api/v2/openapi.yaml
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from probe.core.alerting.channels.address import SecretAddressArgs, read_server
from probe.core.alerting.channels.exchange import ask, post, require_client
from probe.core.alerting.channels.message import MOST_LABELS, MOST_TEXT, MOST_TITLE, clipped
from probe.core.fields import Section
from probe.core.messages import shortened
from probe.core.records import Alert
from probe.core.times import utc_text

OPEN_SECONDS = 3600.0
"""Time in seconds after which an alert about an event, which nobody resolves, ends by itself."""
LEASE_SECONDS, RENEWAL_SECONDS = 900.0, 60.0
"""Time in seconds for which a lasting alert holds, longer than the longest pause between two attempts; and after which
it is sent again, as a client of Alertmanager is to do while an alert is active."""
CHANGING = ("step", "value")
"""Labels that are no part of an alert's identity."""


class AlertmanagerArgs(SecretAddressArgs):
    """Alertmanager: its url without `/api/v2/alerts`; the secret is a bearer token, for one behind a proxy."""


class Alertmanager:
    """Sender of alerts to Alertmanager, which groups, silences and routes them."""

    Args: ClassVar[type[Section]] = AlertmanagerArgs
    sends: ClassVar[str] = "sends alerts to Prometheus Alertmanager, whose address is the url"

    def __init__(self, args: AlertmanagerArgs) -> None:
        require_client("alertmanager")
        self._server = read_server(args)

    def check(self, timeout: float) -> None:
        """Check that the server answers."""
        ask(self._server, timeout)

    def renewal_seconds(self) -> float:
        """Return the time after which a lasting alert is sent again: several times before it would end."""
        return min(RENEWAL_SECONDS, _lease() / 4)

    def send(self, alerts: Sequence[Alert], timeout: float) -> None:
        """Send ``alerts`` in one request. A resolved one has the labels of the one that it ends."""
        url = f"{self._server.url.rstrip('/')}/api/v2/alerts"
        token = self._server.secret
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        post(self._server, url, json.dumps([*map(posted, alerts)]).encode(), timeout, headers)


def posted(alert: Alert) -> Mapping[str, Any]:
    """Return an alert as the API has it."""
    identity = {name: value for name, value in alert.labels.items() if name not in CHANGING}
    labels = {**identity, "alertname": f"probe_{alert.kind}", "key": alert.key, "severity": alert.severity}
    annotations = {
        "title": clipped(alert.title, MOST_TITLE),
        "text": shortened(alert.text, MOST_TEXT),
        **{name: clipped(str(alert.labels[name]), MOST_LABELS) for name in CHANGING if name in alert.labels},
    }
    times = {"endsAt": utc_text(alert.time)}
    if not alert.resolved:  # from now on: of an alert that comes late, an end in the past would be its end
        ends = time.time() + (_lease() if alert.lasting else OPEN_SECONDS)
        times = {"startsAt": utc_text(alert.time), "endsAt": utc_text(ends)}
    named = {_label_name(name): clipped(str(value), MOST_LABELS) for name, value in labels.items()}
    return {"labels": named, "annotations": annotations, **times}


def _lease() -> float:
    return min(LEASE_SECONDS, OPEN_SECONDS)


def _label_name(name: str) -> str:
    name = re.sub(r"[^a-zA-Z0-9_]", "_", name)
    return name if name[:1].isalpha() or name[:1] == "_" else f"_{name}"
