"""Changes of runs, as server-sent events: at most one a second, from a cursor on."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

MOST_STREAMS = 64
"""Streams that are open at a time; the browser's own limit of connections to a server is far below."""
SECONDS = 1.0
"""Shortest time between two events of a stream."""
LOOK_SECONDS = 0.5
"""Time between two looks at the runs of a stream."""
ALIVE_SECONDS = 15.0
"""Time after which a comment is sent if nothing has changed, so that a closed connection is noticed."""


class ChangeLog:
    """The number of the latest change of each run and of the list.

    A cursor is the number of a change. What has changed since follows from it, however long that is ago, and each run
    is in it once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = 0
        self._of_run: dict[int, int] = {}
        self._of_list = 0
        self.streams = 0

    @property
    def cursor(self) -> int:
        """The number of the latest change."""
        return self._number

    def changed(self, run: int | None) -> None:
        """Record the change of a run; None for the list of runs."""
        with self._lock:
            self._number += 1
            if run is None:
                self._of_list = self._number
            else:
                self._of_run[run] = self._number

    def since(self, cursor: int, runs: Collection[int]) -> tuple[int, bool, list[int]]:
        """Return the cursor of now, whether the list has changed since ``cursor``, and which of ``runs`` have."""
        with self._lock:
            changed = [run for run in sorted(runs) if self._of_run.get(run, 0) > cursor]
            return self._number, self._of_list > cursor, changed


def parsed_cursor(text: str | None, log: ChangeLog) -> int:
    """Return the cursor in ``text``; that of now if there is none, or one of another server."""
    if text is None or not text.isdecimal() or len(text) > 15 or int(text) > log.cursor:
        return log.cursor
    return int(text)


async def events(
    log: ChangeLog,
    cursor: int,
    runs: Collection[int],
    about: Callable[[int], Any],
    look: Callable[[], Any],
    is_ending: Callable[[], bool],
) -> AsyncIterator[bytes]:
    """Yield the events of a stream.

    Args:
        about: returns the fields of a run in an event; it is called on a thread.
        look: looks at the runs again, on a thread.
        is_ending: returns whether the stream ends.
    """
    loop = asyncio.get_running_loop()
    log.streams += 1
    try:
        yield b"retry: 2000\n\n"
        last = loop.time() - SECONDS
        while not is_ending():
            await loop.run_in_executor(None, look)
            now, listed, changed = log.since(cursor, runs)
            passed = loop.time() - last
            if (listed or changed) and passed >= SECONDS:
                fields = [each for number in changed if (each := await loop.run_in_executor(None, about, number))]
                data = json.dumps({"cursor": str(now), "listed": listed, "runs": fields}, separators=(",", ":"))
                yield f"id: {now}\nevent: change\ndata: {data}\n\n".encode()
                cursor, last = now, loop.time()
            elif passed >= ALIVE_SECONDS:
                yield b": no change\n\n"
                last = loop.time()
            await asyncio.sleep(LOOK_SECONDS)
    finally:
        log.streams -= 1
