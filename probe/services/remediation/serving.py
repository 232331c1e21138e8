"""Process of the service: socket, TLS, signals, and an end at which the history is complete."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from probe.core.errors import missing
from probe.core.messages import printable
from probe.services.listening import ServerError, address_of, bound, ended_by_signals

if TYPE_CHECKING:
    from probe.services.remediation.settings import ServiceOptions

_log = logging.getLogger("probe.remediation")

MOST_CONNECTIONS = 512
"""Most connections at one time; further ones get status 503."""
KEEP_ALIVE_SECONDS = 75
"""Time in seconds that an idle connection stays open."""
HEADER_SECONDS = 10.0
"""Longest time in seconds in which the headers of a request arrive."""
END_SECONDS = 5
"""Longest time in seconds for requests that are under way at the end."""


def serve_until_ended(options: ServiceOptions, started: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; ``started`` gets the address at which connections are accepted.

    Raises:
        ServerError: if the service cannot start.
        StoreError: if the database cannot be used.
        ImportError: if a package is missing.
    """
    try:
        import uvicorn

        from probe.services.remediation.app import application
        from probe.services.remediation.service import RemediationService
    except ImportError as error:
        package = (error.name or "starlette").partition(".")[0]
        raise ImportError(missing("probe remediate", package, "services")) from None
    with ExitStack() as stack:
        stack.enter_context(_log_lines())
        listening = stack.enter_context(_listening(options))
        service = RemediationService(options)
        stack.callback(service.close)
        config = uvicorn.Config(
            application(service),
            http=_protocol(),
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="critical",  # a line for each malformed request would let strangers fill a disk
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=END_SECONDS,
        )
        config.load()
        config.ssl = options.tls
        server = uvicorn.Server(config)
        stack.enter_context(ended_by_signals(server))
        address = address_of(listening)
        started(address if options.tls is None else address.replace("http:", "https:", 1))
        server.run(sockets=[listening])


@contextmanager
def _listening(options: ServiceOptions) -> Iterator[socket.socket]:
    try:
        with bound(options.host, options.port) as listening:
            yield listening
    except ServerError as error:
        raise ServerError(f"listen: {error}") from None


def _protocol() -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with a deadline for the headers, which it has none for."""
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class DeadlineProtocol(H11Protocol):
        """Protocol that ends a connection on which the headers of a request are not complete in time."""

        _waiting: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._waiting = self.loop.call_later(HEADER_SECONDS, transport.abort)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self._stop()
            elif self._waiting is None and self.timeout_keep_alive_task is None:
                self._waiting = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def _stop(self) -> None:
            if self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None

    return DeadlineProtocol


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
