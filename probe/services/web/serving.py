"""Process of a server: an application on a socket until a signal ends it."""

from __future__ import annotations

import logging
import math
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple

import uvicorn

from probe.services.web.connections import connection_class
from probe.services.web.gate import Gate
from probe.services.web.listening import address_of, raise_limit_of_files

OTHER_FILES = 256
"""Open files of a server besides those of its connections."""


class FewRefusals(logging.Filter):
    """Filter that keeps one record a minute about connections for which no file can be opened: asyncio logs a whole
    backlog of them each second, with tracebacks, which could fill a disk."""

    last = -math.inf
    """Time of the latest record that was kept, in seconds since the epoch."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether ``record`` is kept."""
        if "socket.accept()" not in str(record.msg):
            return True
        if is_due := not self.last <= record.created < self.last + 60:
            self.last = record.created
        return is_due


_few_refusals = FewRefusals()


class ServingLimits(NamedTuple):
    """Limits of a server."""

    connections: int = 512
    """Most connections at one time; further ones get status 503 if no other waits for its client."""
    files: int = 0
    """Open files besides those of connections, and :data:`OTHER_FILES`."""
    keep_alive_seconds: int = 75
    """Time in seconds that an idle connection stays open: longer than clients keep theirs."""
    end_seconds: int = 5
    """Longest time in seconds for requests that are under way at the end."""


class WebServer:
    """Server of one application.

    Args:
        application: the gate before it.
        listening: socket on which connections are accepted.
        tls: certificates; None: plain HTTP.
        lifespan: whether the application has a begin and an end of its own.
        logs_errors: whether uvicorn writes unexpected exceptions to standard error; the application does so otherwise.
    """

    def __init__(
        self,
        application: Gate,
        listening: socket.socket,
        limits: ServingLimits,
        *,
        tls: ssl.SSLContext | None = None,
        lifespan: bool = False,
        logs_errors: bool = True,
    ) -> None:
        raise_limit_of_files(limits.connections + limits.files + OTHER_FILES)
        config = uvicorn.Config(
            application,
            http=connection_class(),
            lifespan="on" if lifespan else "off",
            ws="none",
            log_config=None,
            log_level="error" if logs_errors else "critical",  # a line for each malformed request could fill a disk
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=limits.connections,
            backlog=limits.connections,
            timeout_keep_alive=limits.keep_alive_seconds,
            timeout_graceful_shutdown=limits.end_seconds,
        )
        logging.getLogger("asyncio").addFilter(_few_refusals)
        config.load()
        config.ssl = tls
        self._server, self._listening = uvicorn.Server(config), listening
        address = address_of(listening)
        self.address = address if tls is None else address.replace("http:", "https:", 1)
        """Address at which connections are accepted."""

    @property
    def is_ending(self) -> bool:
        """True once the server ends."""
        return self._server.should_exit

    def run(self, started: Callable[[], None]) -> None:
        """Serve until SIGTERM or SIGINT; ``started`` is called once signals end the server."""
        with self._ended_by_signals():
            started()
            self._server.run(sockets=[self._listening])

    @contextmanager
    def _ended_by_signals(self) -> Iterator[None]:
        """End at signals. uvicorn raises a signal again after it has ended: nothing happens then."""

        def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the interface of handlers
            self._server.should_exit = True

        before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
