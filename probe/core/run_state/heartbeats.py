"""Heartbeats: small messages from every rank to a server, which never hold training up.

A message is put into a bounded buffer; a thread sends what is there, in order, again and again until the server has
confirmed that it is stored. Each message has a number, so that the server stores it once however often it is sent.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from probe.core.door import attempt, succeeds
from probe.core.faults import Faults
from probe.core.http_client import Answer, DeadlineClient, Unanswered, checked_address
from probe.core.messages import writable
from probe.core.run_state.heartbeat_messages import (
    ENDED,
    KINDS,
    LONGEST_NAME,
    MOST_BYTES,
    MOST_MESSAGES,
    MOST_VALUES,
    HeartbeatMessage,
    Origin,
    Value,
    body,
    encoded,
    flattened,
    launch_name,
    unique_name,
)
from probe.core.storage.files import replacing
from probe.core.worker import Worker

WHERE = "heartbeats"
"""The place at which failures are counted."""
CONNECT_SECONDS = 0.1
"""Longest time in seconds to connect."""
ATTEMPT_SECONDS = 5.0
"""Longest time in seconds of one attempt: until the server has stored the messages and answered."""
FIRST_WAIT, LONGEST_WAIT = 0.25, 30.0
"""Seconds between attempts: doubled after each failure, up to the longest, less up to a half at random."""
REFUSED_WAIT = 60.0
"""Seconds after an answer that only a person can change, such as a wrong token."""
LONGEST_RETRY_AFTER = 300.0
"""Longest time in seconds that a server can ask this client to wait."""
LINGER = 0.5
"""Seconds from one batch to the next: messages in between travel together."""
BUFFER_MESSAGES, BUFFER_BYTES = 10_000, 8 << 20
"""Most messages that wait, and most bytes of them; beyond either the oldest are dropped."""
BATCH_BYTES = MOST_BYTES - (1 << 16)


class _Waiting(NamedTuple):
    """Message that waits."""

    message: HeartbeatMessage
    size: int


class _Parcel(NamedTuple):
    """Messages of one request."""

    path: str
    messages: tuple[bytes, ...]
    origin: Origin
    file: Path | None = None
    """File that holds them, if an earlier process made them."""
    last: bool = False
    """True if no other messages of that file follow."""


class Heartbeats:
    """Sender of the heartbeats of this process.

    Args:
        address: of the server, such as ``http://10.0.0.1:8765``.
        token: the server's token, if it has one.
        job: name of the job, the same on all ranks.
        faults: counts of what failed or was dropped.
        spool: folder in which messages that could not be sent by :meth:`close` are kept; the next process of this job
            and rank sends them. Without one they are dropped and counted.

    Raises:
        ValueError: if the address or the token cannot be one.
        ImportError: if httpx is not installed.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None,
        job: str,
        rank: int,
        world_size: int,
        faults: Faults,
        spool: Path | None,
    ) -> None:
        self._address = checked_address(address, "address of the heartbeat server")
        self._headers = {"Content-Type": "application/json", **_authorization(token)}
        self._client = DeadlineClient("Sending heartbeats", self._address)
        run = unique_name()
        name, launch = writable(job)[:LONGEST_NAME] or "unnamed", launch_name(os.environ, lambda: run)
        self._origin = Origin(name, max(rank, 0), max(world_size, 1), run, launch)
        self._faults, self._random = faults, Random()  # noqa: S311 - spreads attempts
        self._spool = None if spool is None else HeartbeatSpool(spool, self._origin.job, rank, faults)
        self._lock = threading.RLock()  # reentrant: a signal handler may send while its thread holds it
        self._buffer: deque[_Waiting] = deque()
        self._flying: tuple[_Waiting, ...] = ()
        self._size, self._number, self._failures, self._singly = 0, 0, 0, 0
        self._not_before = 0.0
        self._deadline: float | None = None
        self._late: deque[_Parcel] | None = None
        """Messages of earlier processes; None before the first look for them."""
        self._worker = Worker("probe-heartbeats", WHERE, faults, look=self._look, due=0.0)

    def send(self, kind: str, message: Mapping[str, object], promise: float | None = None) -> None:
        """Send a message some time soon. Returns at once, from any thread, and raises nothing.

        Args:
            kind: ``train_metrics``, ``init_time``, ``stage_time``, ``progress``, ``finding`` or ``exception``.
            message: numbers and texts by name; nested mappings are flattened. Other values are left out and counted: a
                tensor would have to be waited for.
            promise: longest time in seconds until the next message; None: as before; infinite: none needs to follow.
        """
        if self._worker.here:
            attempt(self._faults, WHERE, self._put, kind, message, promise)

    def close(self, seconds: float) -> None:
        """Send the last message, and wait at most ``seconds`` until all are sent. The rest is kept in files if there is
        a folder for them, else dropped and counted."""
        if not self._worker.here:
            return
        if self._deadline is None:  # else an interrupted call has set it
            self.send("progress", ENDED, math.inf)
            with self._lock:
                self._deadline = time.monotonic() + max(seconds, 0.0)
                self._not_before = 0.0
        self._worker.end(self._end)
        self._worker.join(seconds)
        self._leave()

    def _put(self, kind: str, message: Mapping[str, object], promise: float | None) -> None:
        if kind not in KINDS:
            expected = ", ".join(KINDS)
            self._faults.note(WHERE, ValueError(f"a message is not sent: its kind is none of {expected}: {kind!r:.80}"))
            return
        values, lost = flattened(message)
        if lost:
            text = f"left out: {lost} (no numbers or texts, or beyond {MOST_VALUES}); of a tensor, pass item()"
            self._faults.note(WHERE, TypeError(f"values of a message {text}"))
        promised = None if promise is None or not promise >= 0 else float(promise)
        size = _size(values)
        with self._lock:
            if self._deadline is not None:
                self._faults.lost(f"{WHERE}: messages after the end", 1)
                return
            waiting = HeartbeatMessage(self._number, kind, time.time(), promised, values)
            self._number += 1
            self._buffer.append(_Waiting(waiting, size))
            self._size += size
            while len(self._buffer) > BUFFER_MESSAGES or self._size > BUFFER_BYTES:
                self._size -= self._buffer.popleft().size
                self._faults.lost(f"{WHERE}: messages dropped, since too many waited", 1)
            early = time.monotonic() < self._not_before
        if not early:  # else the thread could only wait again
            self._worker.wake()

    def _look(self) -> float | None:
        """Send what may be sent now; return the seconds until more may be, or None: until there is a message."""
        if self._late is None:
            self._late = deque()
            if self._spool is not None:
                self._late.extend(parcel for batch in self._spool.waiting() for parcel in _parcels(batch))
        if not succeeds(self._faults, WHERE, self._send_next):
            self._pause(self._backoff())
        return self._patience()

    def _end(self) -> None:
        """Send what waits until the deadline."""
        while (pause := self._look()) is not None:
            time.sleep(pause)
        self._client.close()

    def _send_next(self) -> None:
        if (parcel := self._take()) is not None:
            self._deliver(parcel)

    def _take(self) -> _Parcel | None:
        """Return what may be sent now; None if there is nothing."""
        with self._lock:
            if not self._ready():
                return None
            late = self._late[0] if self._late and self._nothing_waits() else None
            batch = self._flying if late is not None else self._next()
        if late is not None:
            return late
        messages = tuple(encoded(item.message) for item in batch)  # without the lock: training may want to send
        return _Parcel(KINDS[batch[0].message.kind], messages, self._origin)

    def _nothing_waits(self) -> bool:
        return not (self._flying or self._buffer)

    def _ready(self) -> bool:
        now = time.monotonic()
        if now < self._not_before or (self._deadline is not None and now >= self._deadline):
            return False
        return not self._nothing_waits() or bool(self._late and self._deadline is None)

    def _patience(self) -> float | None:
        """Return the seconds to wait for; None if only a message can change anything."""
        with self._lock:
            now = time.monotonic()
            if self._deadline is not None and (self._nothing_waits() or now >= self._deadline):
                return None
            if self._ready():
                return 0.0
            if self._deadline is not None:
                return max(min(self._not_before, self._deadline) - now, 0.0)
            return self._not_before - now if self._not_before > now else None

    def _next(self) -> tuple[_Waiting, ...]:
        """Return the messages to send now: those of the attempt before, else the oldest that wait."""
        if not self._flying:
            path, size, batch = KINDS[self._buffer[0].message.kind], 0, list[_Waiting]()
            most = 1 if self._singly else MOST_MESSAGES
            while self._buffer and len(batch) < most and KINDS[self._buffer[0].message.kind] == path:
                size += self._buffer[0].size
                if batch and size > BATCH_BYTES:
                    break
                batch.append(self._buffer.popleft())
                self._size -= batch[-1].size
            self._flying = tuple(batch)
            self._singly = max(self._singly - 1, 0)
        return self._flying

    def _deliver(self, parcel: _Parcel) -> None:
        """Make one attempt and act on its outcome."""
        content = body(parcel.origin, parcel.messages, late=parcel.file is not None)
        url, seconds = f"{self._address}{parcel.path}", ATTEMPT_SECONDS
        if self._deadline is not None:
            seconds = max(min(seconds, self._deadline - time.monotonic()), 0.01)
        try:
            answer = self._client.request(
                "POST", url, connect_seconds=CONNECT_SECONDS, seconds=seconds, headers=self._headers, body=content
            )
        except Unanswered as error:
            self._failed(str(error), self._backoff())
            return
        if 200 <= answer.status < 300 and _confirmed(answer, len(parcel.messages)):
            self._stored(parcel)
        elif answer.status in (400, 413, 422):
            self._refused(parcel, answer.status)
        elif answer.status in (429, 503) and (asked := answer.retry_after(LONGEST_RETRY_AFTER)) is not None:
            self._failed(f"the server asks for a pause: status {answer.status}", asked or self._backoff())
        elif 400 <= answer.status < 500 and answer.status not in (408, 425, 429):
            self._failed(f"the server takes no messages: status {answer.status}", REFUSED_WAIT)
        else:
            self._failed(f"an answer without confirmation: status {answer.status}", self._backoff())

    def _stored(self, parcel: _Parcel) -> None:
        with self._lock:
            self._failures = 0
            if parcel.file is None:
                self._flying = ()
            elif self._late:
                self._late.popleft()
            self._not_before = 0.0 if self._deadline is not None else time.monotonic() + LINGER
        if parcel.file is not None and parcel.last and self._spool is not None:
            self._spool.remove(parcel.file)

    def _refused(self, parcel: _Parcel, status: int) -> None:
        """Send the messages of a refused batch one by one; drop one that was alone."""
        with self._lock:
            if parcel.file is None and len(self._flying) > 1:
                self._singly = len(self._flying)
                self._buffer.extendleft(reversed(self._flying))
                self._size += sum(item.size for item in self._flying)
                self._flying = ()
                return
        self._faults.lost(f"{WHERE}: messages that the server refused with status {status}", len(parcel.messages))
        self._stored(parcel)

    def _failed(self, reason: str, seconds: float) -> None:
        self._faults.note(WHERE, ConnectionError(reason))
        self._pause(seconds)

    def _pause(self, seconds: float) -> None:
        with self._lock:
            self._not_before = time.monotonic() + seconds

    def _backoff(self) -> float:
        self._failures = min(self._failures + 1, 30)
        longest = min(FIRST_WAIT * 2.0 ** (self._failures - 1), LONGEST_WAIT)
        return longest * self._random.uniform(0.5, 1.0)

    def _leave(self) -> None:
        """Keep or count the messages that were not sent."""
        with self._lock:
            unsent = [encoded(item.message) for item in (*self._flying, *self._buffer)]
            self._flying = ()
            self._buffer.clear()
        if unsent and not (self._spool is not None and self._spool.keep(self._origin, unsent)):
            self._faults.lost(f"{WHERE}: messages that were not sent before the end", len(unsent))


def _authorization(token: str | None) -> dict[str, str]:
    if token is None:
        return {}
    if not token or not token.isascii() or any(letter <= " " or letter == "\x7f" for letter in token):
        raise ValueError("token of the heartbeat server: expected printable ASCII characters without spaces")
    return {"Authorization": f"Bearer {token}"}


def _size(values: Mapping[str, Value]) -> int:
    """Return about as many bytes as the JSON of a message has at most."""
    texts = (6 * len(value) if isinstance(value, str) else 26 for value in values.values())
    return 160 + sum(6 * len(name) + 6 for name in values) + sum(texts)


def _parcels(batch: KeptMessages) -> Sequence[_Parcel]:
    groups: list[tuple[str, list[bytes]]] = []
    size = 0
    for path, message in batch.messages:
        size += len(message)
        if not groups or groups[-1][0] != path or len(groups[-1][1]) >= MOST_MESSAGES or size > BATCH_BYTES:
            groups.append((path, []))
            size = len(message)
        groups[-1][1].append(message)
    last = len(groups) - 1
    return [
        _Parcel(path, tuple(messages), batch.origin, batch.file, place == last)
        for place, (path, messages) in enumerate(groups)
    ]


def _confirmed(answer: Answer, number: int) -> bool:
    """Return whether the server has confirmed ``number`` messages: any page can have status 200."""
    try:
        counts = json.loads(answer.body)
        return bool(counts["stored"] + counts["known"] == number)
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


SPOOL_WHERE = "heartbeats: kept files"
"""The place at which failures are counted."""
MOST_FILES = 20
"""Most files of one rank; further ones, the oldest, are removed."""
LARGEST_FILE = 1 << 26
"""Largest file in bytes that is read."""


class KeptMessages(NamedTuple):
    """Messages of a process that has ended."""

    file: Path
    origin: Origin
    messages: tuple[tuple[str, bytes], ...]
    """Endpoint and JSON of each, in order."""


class HeartbeatSpool:
    """Folder of files with the messages of one rank that were not sent: one file a process."""

    def __init__(self, folder: Path, job: str, rank: int, faults: Faults) -> None:
        self._folder, self._job, self._rank, self._faults = folder, job, rank, faults

    def keep(self, origin: Origin, messages: Sequence[bytes]) -> bool:
        """Write ``messages``; return whether they are on disk."""
        lines = [json.dumps(origin._asdict()).encode(), *messages]
        try:
            with replacing(self._folder / f"{self._prefix}{origin.run}.jsonl") as file:
                file.writelines(f"{line.decode()}\n" for line in lines)
        except OSError as error:
            self._faults.note(SPOOL_WHERE, error)
            return False
        return True

    def waiting(self) -> list[KeptMessages]:
        """Read the files, the oldest first. One that cannot be read, or of another job, is left where it is."""
        try:
            files = sorted(self._folder.glob(f"{self._prefix}*.jsonl"), key=lambda file: file.stat().st_mtime)
        except OSError as error:
            self._faults.note(SPOOL_WHERE, error)
            return []
        for file in files[:-MOST_FILES]:
            self.remove(file)
            self._faults.lost(f"{SPOOL_WHERE}: removed, more than {MOST_FILES}", 1)
        contents = [self._read(file) for file in files[-MOST_FILES:]]
        return [batch for batch in contents if batch is not None and batch.origin.job == self._job]

    def remove(self, file: Path) -> None:
        """Remove a file whose messages were sent."""
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            self._faults.note(SPOOL_WHERE, error)

    @property
    def _prefix(self) -> str:
        return f"heartbeats-{self._rank}-"

    def _read(self, file: Path) -> KeptMessages | None:
        try:
            if file.stat().st_size > LARGEST_FILE:
                raise OSError(f"{file}: larger than {LARGEST_FILE} bytes")
            first, *lines = file.read_bytes().splitlines()
            origin = Origin(**json.loads(first))
            return KeptMessages(file, origin, tuple((KINDS[json.loads(line)["kind"]], line) for line in lines))
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            self._faults.note(SPOOL_WHERE, error)
            return None
