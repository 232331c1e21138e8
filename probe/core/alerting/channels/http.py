"""Channel ``http``: a JSON object that any server can receive."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import ClassVar

from probe.core.alerting.channels.address import SecretAddressArgs, read_server
from probe.core.alerting.channels.exchange import ask, post, require_client
from probe.core.alerting.channels.message import as_json, highest, subject
from probe.core.fields import Section
from probe.core.records import Alert


class HttpArgs(SecretAddressArgs):
    """Server; the secret is a token that is sent as `Authorization: Bearer ...`."""


class Http:
    """Sender of JSON objects by POST."""

    Args: ClassVar[type[Section]] = HttpArgs
    sends: ClassVar[str] = "sends a JSON object by POST to the url, with the secret as bearer token"

    def __init__(self, args: HttpArgs) -> None:
        require_client("http")
        self._server = read_server(args)

    def check(self, timeout: float) -> None:
        """Check that the server answers."""
        ask(self._server, timeout)

    def send(self, alerts: Sequence[Alert], timeout: float) -> None:
        """Send ``alerts`` as one object: title, severity and the alerts."""
        whole = {"title": subject(alerts), "severity": highest(alerts), "alerts": [*map(as_json, alerts)]}
        token = self._server.secret
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        post(self._server, self._server.url, json.dumps(whole).encode(), timeout, headers)
