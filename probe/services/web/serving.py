"""Process of a server: an application on a socket until a signal ends it."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import ClassVar, NamedTuple

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

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


HEADER_SECONDS = 10.0
"""Longest time in seconds in which the headers of a request arrive."""
REST_SECONDS = 15.0
"""Longest time in seconds in which the rest of a request arrives: more than an endpoint waits for a body."""
READ_SECONDS = 60.0
"""Longest time in seconds in which a client takes nothing of an answer."""


class BoundedConnection(H11Protocol):
    """Connection that waits for its client for a limited time: uvicorn has a deadline for idle connections alone, and
    clients that send half a request, or read no answer, would shut all others out before any token is asked for. Where
    a new connection would be one too many, the one that has waited longest in the middle of a request is closed, or, if
    there is none, the one that was idle longest.

    Each server has a class of its own, made by :func:`connection_class`.
    """

    stalled: ClassVar[dict[BoundedConnection, None]]
    """Connections in the middle of a request or an answer that wait for their clients, the longest first."""
    idle: ClassVar[dict[BoundedConnection, None]]
    """Connections between two requests, the longest first."""
    _seconds: float | None = None
    """Seconds of the wait that is under way."""
    _deadline: asyncio.TimerHandle | None = None
    _unread = 0
    """Bytes of the answer that the client had not taken when the wait began."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room for the connection, and wait for its first request."""
        super().connection_made(transport)
        while self.limit_concurrency and len(self.connections) >= self.limit_concurrency and self._oldest():
            pass
        self._follow()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        super().data_received(data)
        self._follow()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is no HTTP in its middle: its endpoint, which is under way, has nobody to answer."""
        if self.cycle is not None:
            self.cycle.disconnected = True
        super().send_400_response(msg)

    def on_response_complete(self) -> None:
        """Wait for the rest of the request, for the next one, or for the client to read."""
        super().on_response_complete()
        self._follow()

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        super().pause_writing()
        self._follow()

    def resume_writing(self) -> None:
        """Go on with the answer."""
        super().resume_writing()
        self._follow()

    def timeout_keep_alive_handler(self) -> None:
        """End an idle connection as soon as its client has read the last answer."""
        super().timeout_keep_alive_handler()
        self._follow()

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave the place."""
        self._leave()
        super().connection_lost(exc)

    def _follow(self) -> None:
        """Begin the wait for the client that is due now, unless it is under way."""
        seconds, is_idle = self._wait()
        if is_idle:
            self._leave()
            self.idle[self] = None
        elif seconds != self._seconds:
            self._leave()
            self._seconds = seconds
            if seconds is not None:
                self.stalled[self] = None
                self._unread = self.transport.get_write_buffer_size()
                self._deadline = self.loop.call_later(seconds, self._expire)

    def _wait(self) -> tuple[float | None, bool]:
        """Return how long the client may take for what is due from it, None for nothing; and whether it is idle."""
        if self.transport.is_closing() or self.flow.write_paused:
            return READ_SECONDS, False
        state = self.conn.their_state
        if state is h11.SEND_BODY:
            return REST_SECONDS, False
        if state is h11.IDLE:
            begun, _ = self.conn.trailing_data
            return HEADER_SECONDS, self.timeout_keep_alive_task is not None and not begun
        return None, False

    def _expire(self) -> None:
        """End the connection, unless its client has taken a part of the answer meanwhile."""
        unread = self.transport.get_write_buffer_size()
        if self._seconds == READ_SECONDS and unread < self._unread:
            self._unread = unread
            self._deadline = self.loop.call_later(READ_SECONDS, self._expire)
        else:
            self.end()

    def end(self) -> None:
        """End the connection at once."""
        self._leave()
        self.connections.discard(self)
        self.transport.abort()

    def _leave(self) -> None:
        """End the wait."""
        self.stalled.pop(self, None)
        self.idle.pop(self, None)
        self._seconds = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _oldest(self) -> bool:
        """End the connection whose place is needed least; return whether there was one."""
        oldest = next(iter(self.stalled or self.idle), None)
        if oldest is None:
            return False
        oldest.end()
        return True


def connection_class() -> type[BoundedConnection]:
    """Return the class of the connections of one server."""

    class ServerConnection(BoundedConnection):
        """Connection of this server."""

        stalled: ClassVar[dict[BoundedConnection, None]] = {}
        idle: ClassVar[dict[BoundedConnection, None]] = {}

    return ServerConnection
