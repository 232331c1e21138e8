"""Process of the server: socket, signals, and an end at which everything is committed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from probe.core.alerting.alerts import Alerts
from probe.core.alerting.channels import AlertSender
from probe.core.errors import needed
from probe.core.faults import Faults
from probe.core.http_client import DeadlineClient, Unanswered, checked_address
from probe.core.records import Alert
from probe.core.run_state.judges import rule_makers
from probe.core.run_state.rules import RunRule
from probe.core.worker import Worker
from probe.services.web.listening import ServerError, bound, is_loopback

if TYPE_CHECKING:
    from probe.core.config.schema import Settings

_log = logging.getLogger("probe.server")

TOKEN_VARIABLE = "PROBE_SERVER_TOKEN"  # noqa: S105 - its name
"""Environment variable that holds the token."""
ALERT_SECONDS = 10.0
"""Longest time in seconds in which alerts are delivered at the end, if no configuration names another."""
COMMIT_SECONDS = 60.0
"""Longest time in seconds for the last commit."""

MOST_CONNECTIONS = 8_192
"""Most connections at one time; further ones get status 503."""
END_SECONDS = 5
"""Longest time in seconds in which the dead man's switch ends."""
EVERY_SECONDS = 60.0
CONNECT_SECONDS, CALL_SECONDS = 5.0, 10.0
"""Longest times in seconds to connect and of a whole call."""
WORK_SECONDS = 10.0
"""Longest time in seconds in which the server proves that it works."""


class ServerOptions(NamedTuple):
    """Options of a server."""

    host: str
    port: int
    """0: any that is free."""
    database: Path
    token: str | None
    settings: Settings | None
    """Configuration with the channels of alerts and the rules; None: neither."""
    dead_man: str | None = None
    dead_man_seconds: float = EVERY_SECONDS
    keep_seconds: float = 7 * 86_400.0
    keep_messages: int = 5_000_000


def serve_until_ended(options: ServerOptions, started: Callable[[str], None]) -> bool:
    """Serve until SIGTERM or SIGINT; ``started`` gets the address at which connections are accepted. Return whether
    everything that had come in was committed.

    Raises:
        ServerError: if the server cannot start.
        StoreError: if the database cannot be used.
        ImportError: if a package is missing.
        ValueError: if an option cannot be used.
    """
    with needed("probe serve", "services"):
        from probe.services.server.app import application
        from probe.services.server.service import HeartbeatService
        from probe.services.web.serving import ServingLimits, WebServer
    faults, committed = Faults(), list[bool]()
    with ExitStack() as stack:
        listening = stack.enter_context(bound(options.host, options.port))
        if options.token is None and not is_loopback(options.host):
            raise ServerError(
                "--listen {host}:{port}: expected a token, since other machines can connect; write one to a file "
                "for --token-file, or into the variable {token_variable}: openssl rand -hex 32",
                host=options.host,
                port=options.port,
                token_variable=TOKEN_VARIABLE,
            )
        alerts = alert_sender(options.settings, options.database.parent, faults)
        stack.callback(
            alerts.close, ALERT_SECONDS if options.settings is None else options.settings.alert.grace_seconds
        )
        service = HeartbeatService(
            options.database, alerts, faults, options.keep_seconds, options.keep_messages, rules_of(options.settings)
        )
        stack.callback(lambda: committed.append(service.store.close(COMMIT_SECONDS)))
        limits = ServingLimits(MOST_CONNECTIONS)
        server = WebServer(application(service, options.token), listening, limits, lifespan=True)
        if options.dead_man is not None:
            switch = DeadManSwitch(options.dead_man, service.works_from_outside, options.dead_man_seconds)
            switch.start()
            stack.callback(switch.close, END_SECONDS)
        server.run(lambda: started(server.address))
    return committed == [True]


def alert_sender(settings: Settings | None, directory: Path, faults: Faults) -> AlertSender:
    """Return the sender of alerts that ``settings`` configure, which writes them to ``directory`` first."""
    if settings is None or not settings.alert.channels:
        return SilentSender()
    sender = Alerts(settings.alert, job="probe serve", rank=0, directory=directory, faults=faults)
    sender.start()
    return sender


class SilentSender:
    """Sender for servers without channels: their page shows everything."""

    def send(self, alert: Alert) -> None:
        """Log the title of ``alert``, unless an earlier process has."""
        if alert.repeated:
            return
        _log.warning("no channel is configured: %s", alert.title)

    def resolve(self, key: str, text: str) -> None:  # noqa: ARG002 - the interface of senders
        """Log ``text``."""
        _log.warning("no channel is configured: %s", text)

    def close(self, seconds: float) -> None:
        """Do nothing."""


def rules_of(settings: Settings | None) -> list[Callable[[], RunRule]]:
    """Return makers of the rules about numbers of a run that ``settings`` choose."""
    return [] if settings is None else rule_makers(settings)


class DeadManSwitch:
    """Thread that calls ``address`` by GET every ``every_seconds`` if ``works`` returns true. The address is a secret.

    Raises:
        ValueError: if the address cannot be one.
        ImportError: if httpx is not installed.
    """

    def __init__(self, address: str, works: Callable[[float], bool], every_seconds: float = EVERY_SECONDS) -> None:
        self._address = checked_address(address, "--dead-man, the dead man's address")
        self._client = DeadlineClient("The dead man's switch", self._address)
        self._works, self._every_seconds = works, every_seconds
        self._worker: Worker | None = None

    def start(self) -> None:
        """Begin."""
        faults = Faults("the server goes on")
        self._worker = Worker("probe-dead-man", "dead man's switch", faults, look=self._look, due=0.0)

    def close(self, seconds: float) -> None:
        """End within ``seconds``; the address is not called any more."""
        if self._worker is not None:
            self._worker.end(self._client.close)
            self._worker.join(seconds)

    def _look(self) -> float:
        if self._works(WORK_SECONDS):
            self._call()
        else:
            _log.warning("the dead man's address is not called: the database cannot be written")
        return self._every_seconds

    def _call(self) -> None:
        try:
            answer = self._client.request("GET", self._address, connect_seconds=CONNECT_SECONDS, seconds=CALL_SECONDS)
        except Unanswered as error:
            _log.warning("the dead man's address does not answer: %s", error)
            return
        if not 200 <= answer.status < 300:
            _log.warning("the dead man's address answers with status %d", answer.status)
