"""Process of the service: socket, TLS, signals, and an end at which the history is complete."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from probe.core.errors import needed
from probe.core.messages import printable
from probe.services.web.listening import ServerError, bound

if TYPE_CHECKING:
    from probe.services.remediation.settings import ServiceOptions

_log = logging.getLogger("probe.remediation")


def serve_until_ended(options: ServiceOptions, started: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; ``started`` gets the address at which connections are accepted.

    Raises:
        ServerError: if the service cannot start.
        StoreError: if the database cannot be used.
        ImportError: if a package is missing.
    """
    with needed("probe remediate", "services"):
        from probe.services.remediation.app import application
        from probe.services.remediation.service import RemediationService
        from probe.services.web.serving import ServingLimits, WebServer
    with ExitStack() as stack:
        stack.enter_context(_log_lines())
        listening = stack.enter_context(_listening(options))
        service = RemediationService(options)
        stack.callback(service.close)
        server = WebServer(application(service), listening, ServingLimits(), tls=options.tls, logs_errors=False)
        server.run(lambda: started(server.address))


@contextmanager
def _listening(options: ServiceOptions) -> Iterator[socket.socket]:
    try:
        with bound(options.host, options.port) as listening:
            yield listening
    except ServerError as error:
        raise ServerError(f"listen: {error}") from None


@contextmanager
def _log_lines() -> Iterator[None]:
    """Write the log of the service to standard error, one line an entry."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    level = _log.level
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    try:
        yield
    finally:
        _log.removeHandler(handler)
        _log.setLevel(level)


class _LineFormatter(logging.Formatter):
    """Format without line breaks and control characters."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of ``record``."""
        return printable(super().format(record))
