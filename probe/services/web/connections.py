"""Connections that no client can hold: each wait for a client has a deadline, and ends early where room is short.

uvicorn has a deadline for idle connections alone. Clients that send half a request, or read no answer, would keep their
places for ever, and as many as there are places would shut all others out, before any token is asked for.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0
"""Longest time in seconds in which the headers of a request arrive."""
REST_SECONDS = 15.0
"""Longest time in seconds in which the rest of a request arrives: more than an endpoint waits for a body."""
READ_SECONDS = 60.0
"""Longest time in seconds in which a client takes nothing of an answer."""


class BoundedConnection(H11Protocol):
    """Connection that waits for its client for a limited time. Where a new connection would be one too many, the one
    that has waited longest in the middle of a request is closed, or, if there is none, the one that was idle longest.

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
