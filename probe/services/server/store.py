"""Messages in an SQLite database: many requests in one transaction, each confirmed after its commit alone.

One thread writes. While it commits, further requests gather, so that the number of transactions does not grow with that
of requests. ``synchronous=FULL``: with WAL, this is the mode in which a committed transaction survives a power failure.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from probe.core.records import Alert
from probe.core.run_state.heartbeat_messages import (
    EVENTS,
    HeartbeatBatch,
    HeartbeatMessage,
    Origin,
    numeric,
    travelling,
)
from probe.services.database import DatabaseKind, open_database

_log = logging.getLogger("probe.server")

GATHER_SECONDS = 0.02
"""Time in seconds that the first request of a transaction waits for others."""
MOST_REQUESTS, MOST_WAITING_BYTES = 5_000, 8 << 20
"""Most requests that wait for a commit, and most bytes of them."""
PRUNE_SECONDS = 1.0
"""Seconds between removals of old messages."""
PRUNE_ROWS = 5_000
"""Most messages that one removal reads."""
MOST_EVENTS = 100_000
"""Most findings and exceptions that are kept: more precious than other messages, and counted apart."""
MOST_SOURCES = 50_000
"""Most sources whose ids are kept in memory."""
_EVENTS = "('finding', 'exception')"
MOST_READ = 4 << 20
"""Most characters of contents that one reading of messages returns."""
COMPLAINT_SECONDS = 60.0
"""Seconds between two log lines about failed transactions."""
LAST_MESSAGES = 20
"""Messages of each source from which its state is restored."""
TABLES = f"""
CREATE TABLE sources (
    id INTEGER PRIMARY KEY, job TEXT NOT NULL, rank INTEGER NOT NULL, world INTEGER NOT NULL, run TEXT NOT NULL,
    launch TEXT NOT NULL, created REAL NOT NULL, removed INTEGER NOT NULL DEFAULT -1, UNIQUE (job, rank, run)
);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, source INTEGER NOT NULL, number INTEGER NOT NULL, kind TEXT NOT NULL,
    time REAL NOT NULL, received REAL NOT NULL, promise REAL, late INTEGER NOT NULL, contents TEXT NOT NULL
);
CREATE UNIQUE INDEX once ON messages (source, number);
CREATE INDEX events ON messages (id) WHERE kind IN {_EVENTS};
CREATE TABLE matters (key TEXT PRIMARY KEY, time REAL NOT NULL, alert TEXT);
CREATE TABLE pulse (id INTEGER PRIMARY KEY CHECK (id = 0), time REAL NOT NULL);
"""
KIND = DatabaseKind(TABLES, 1, 0x70726F62, "server", "choose another file with --database")


class Receipt(NamedTuple):
    """Result of a commit."""

    fresh: tuple[HeartbeatMessage, ...]
    """Messages that were stored now."""
    repeats: int
    """Number of messages that had been stored before."""


class StoredMessage(NamedTuple):
    """Row of the database."""

    id: int
    origin: Origin
    message: HeartbeatMessage
    received: float
    """Seconds since the epoch."""
    late: bool


Task = Callable[[sqlite3.Cursor], Any]
Outcome = Any
"""Result of a task, or the exception that it raised."""


class _Request(NamedTuple):
    task: Task
    ticket: object
    size: int


class HeartbeatStore:
    """Database of messages, with the thread that writes it.

    Args:
        settle: function that gets the tickets of a transaction, each with its outcome, after the commit; called on the
            thread of the store.

    Raises:
        StoreError: if the file cannot be used, with the reason.
    """

    def __init__(
        self,
        path: Path,
        settle: Callable[[list[tuple[object, Outcome]]], None],
        keep_seconds: float = 7 * 86_400.0,
        keep_messages: int = 5_000_000,
    ) -> None:
        self.path, self._settle = path, settle
        self._keep_seconds, self._keep_messages = keep_seconds, keep_messages
        self._connection, self._lock = open_database(path, KIND, _prepare)
        self._opened = _identity(path)
        self._changed = threading.Condition()
        self._waiting: deque[_Request] = deque()
        self._size, self._closing = 0, False
        self._sources: dict[tuple[str, int, str], tuple[int, int]] = {}
        self._pruned_to, self._pruned_at, self._complained = 0, 0.0, -COMPLAINT_SECONDS
        self.commits, self.commit_seconds, self.failures = 0, 0.0, 0
        self._thread = threading.Thread(target=self._run, name="probe-store", daemon=True)
        self._thread.start()

    def submit(self, batch: HeartbeatBatch, size: int, ticket: object) -> bool:
        """Store ``batch`` with the next transaction; its outcome is a :class:`Receipt`. Return False if
        too much waits."""
        received = time.time()
        return self.run(lambda cursor: self._insert(cursor, batch, received), ticket, size)

    def run(self, task: Task, ticket: object, size: int = 0) -> bool:
        """Run ``task`` within the next transaction. Return False if too much waits."""
        with self._changed:
            full = len(self._waiting) >= MOST_REQUESTS or self._size + size > MOST_WAITING_BYTES
            if full or self._closing:
                return False
            self._waiting.append(_Request(task, ticket, size))
            self._size += size
            self._changed.notify()
        return True

    def remember(self, key: str, alert: Alert | None) -> None:
        """Store the alert of the open matter ``key``; None if it has ended."""

        def insert(cursor: sqlite3.Cursor) -> None:
            values = (key, time.time(), json.dumps(alert))
            cursor.execute("INSERT OR REPLACE INTO matters (key, time, alert) VALUES (?, ?, ?)", values)

        def delete(cursor: sqlite3.Cursor) -> None:
            cursor.execute("DELETE FROM matters WHERE key = ?", (key,))

        self.run(delete if alert is None else insert, None)

    @staticmethod
    def pulse(cursor: sqlite3.Cursor) -> None:
        """Return a task that writes a row: proof that the database can be written."""
        cursor.execute("INSERT OR REPLACE INTO pulse VALUES (0, ?)", (time.time(),))

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a commit."""
        return len(self._waiting)

    def close(self, seconds: float) -> bool:
        """Commit all that waits and close the database; return whether this took at most ``seconds``."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while group := self._gather():
            self._commit(group)
            if time.monotonic() - self._pruned_at >= PRUNE_SECONDS:
                self._commit([_Request(self._prune, None, 0)])
                self._pruned_at = time.monotonic()
        with suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.close()
        self._lock.close()

    def _gather(self) -> list[_Request]:
        """Wait for requests, and a moment for more of them; return an empty list at the end."""
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
        if not self._closing:
            time.sleep(GATHER_SECONDS)
        with self._changed:
            group = list(self._waiting)
            self._waiting.clear()
            self._size = 0
            return group

    def _commit(self, group: list[_Request]) -> None:
        """Run the tasks in one transaction; if it fails, run each task in a transaction of its own."""
        began = time.perf_counter()
        try:
            outcomes = self._transaction(group)
        except Exception as error:  # noqa: BLE001 - the thread goes on: the next transaction may succeed
            self.failures += 1
            if len(group) > 1 and not isinstance(error, sqlite3.OperationalError):
                for request in group:
                    self._commit([request])
                return
            self._complain(error)
            outcomes = [(request.ticket, error) for request in group]
        self.commits += 1
        self.commit_seconds += time.perf_counter() - began
        pairs = [pair for pair in outcomes if pair[0] is not None]
        if pairs:
            self._settle(pairs)

    def _complain(self, error: Exception) -> None:
        """Log a failed transaction, once a minute."""
        now = time.monotonic()
        if now - self._complained >= COMPLAINT_SECONDS:
            self._complained = now
            _log.warning("%s: a transaction failed (%d so far): %s", self.path, self.failures, error)

    def _transaction(self, group: list[_Request]) -> list[tuple[object, Outcome]]:
        if _identity(self.path) != self._opened:  # SQLite would go on with a file that nobody can open any more
            raise sqlite3.OperationalError("the file has been removed or replaced: start the server again")
        cursor = self._connection.cursor()
        cursor.execute("BEGIN IMMEDIATE")
        try:
            outcomes = [(request.ticket, request.task(cursor)) for request in group]
            cursor.execute("COMMIT")
        except BaseException:
            self._sources.clear()  # some of them may be of the transaction that failed
            with suppress(sqlite3.Error):
                cursor.execute("ROLLBACK")
            raise
        finally:
            cursor.close()
        return outcomes

    def _insert(self, cursor: sqlite3.Cursor, batch: HeartbeatBatch, received: float) -> Receipt:
        source, removed = self._source(cursor, batch.origin, received)
        fresh = [
            message
            for message in batch.messages
            if message.number > removed and _insert_one(cursor, source, message, received, batch.late)
        ]
        return Receipt(tuple(fresh), len(batch.messages) - len(fresh))

    def _source(self, cursor: sqlite3.Cursor, origin: Origin, received: float) -> tuple[int, int]:
        """Return the id of a source and the highest number of its messages that were removed as too old."""
        key = (origin.job, origin.rank, origin.run)
        if (source := self._sources.get(key)) is None:
            row = (origin.job, origin.rank, origin.world, origin.run, origin.launch, received)
            cursor.execute(
                "INSERT OR IGNORE INTO sources (job, rank, world, run, launch, created) VALUES (?, ?, ?, ?, ?, ?)", row
            )
            cursor.execute("SELECT id, removed FROM sources WHERE job = ? AND rank = ? AND run = ?", key)
            if len(self._sources) >= MOST_SOURCES:
                self._sources.clear()
            source = self._sources[key] = cursor.fetchone()
        return source

    def _prune(self, cursor: sqlite3.Cursor) -> None:
        """Remove some of the messages that are too old or too many, oldest first."""
        oldest_kept = time.time() - self._keep_seconds
        (newest,) = cursor.execute("SELECT max(id) FROM messages").fetchone()
        first = cursor.execute(
            "SELECT id, received FROM messages WHERE id > ? ORDER BY id LIMIT 1", (self._pruned_to,)
        ).fetchone()
        if first is None or (first[1] >= oldest_kept and first[0] > newest - self._keep_messages):
            return
        rows = cursor.execute(
            "SELECT id, source, number, received, kind FROM messages WHERE id > ? ORDER BY id LIMIT ?",
            (self._pruned_to, PRUNE_ROWS),
        ).fetchall()
        old = [row for row in rows if row[3] < oldest_kept or row[0] <= newest - self._keep_messages]
        self._remove(cursor, [row for row in old if row[4] not in EVENTS])
        self._pruned_to = old[-1][0] if old else self._pruned_to
        events = cursor.execute(
            f"SELECT id, source, number, received FROM messages WHERE kind IN {_EVENTS} ORDER BY id LIMIT ?",  # noqa: S608
            (PRUNE_ROWS,),
        ).fetchall()
        (number,) = cursor.execute(f"SELECT count(*) FROM messages WHERE kind IN {_EVENTS}").fetchone()  # noqa: S608
        surplus = number - MOST_EVENTS
        self._remove(cursor, [row for place, row in enumerate(events) if row[3] < oldest_kept or place < surplus])

    def _remove(self, cursor: sqlite3.Cursor, rows: list[Any]) -> None:
        """Remove messages, and remember their numbers: sent again, they are known."""
        if not rows:
            return
        highest: dict[int, int] = {}
        for row in rows:
            highest[row[1]] = max(row[2], highest.get(row[1], -1))
        cursor.executemany("DELETE FROM messages WHERE id = ?", [(row[0],) for row in rows])
        cursor.executemany(
            "UPDATE sources SET removed = max(removed, ?) WHERE id = ?", [(n, source) for source, n in highest.items()]
        )
        cursor.executemany(
            "DELETE FROM sources WHERE id = ? AND created < ? "
            "AND NOT EXISTS (SELECT 1 FROM messages WHERE source = sources.id)",
            [(source, time.time() - self._keep_seconds) for source in highest],
        )
        self._sources.clear()

    def restored(self) -> tuple[list[StoredMessage], dict[str, Alert | None]]:
        """Read the last messages of every source in their order, and the open matters by their keys, each with its
        alert; None if an earlier version has stored it."""
        with closing(_reader(self.path)) as connection:
            sources = connection.execute("SELECT id FROM sources").fetchall()
            rows = [
                _stored(row)
                for (source,) in sources
                for row in _select(connection, "source = ? ORDER BY number DESC LIMIT ?", (source, LAST_MESSAGES))
            ]
            matters = connection.execute("SELECT key, alert FROM matters").fetchall()
        alerts = {key: None if alert is None else Alert(*json.loads(alert)) for key, alert in matters}
        return sorted(rows, key=lambda row: row.id), alerts

    def messages(self, after: int, most: int, job: str | None = None, events: bool = False) -> list[StoredMessage]:
        """Read messages after the id ``after``, or the newest findings and exceptions, newest first: ``most`` of them,
        or fewer if they are large, but one at least."""
        where, arguments = "messages.id > ?", list[object]([after])
        if events:
            where += f" AND kind IN {_EVENTS}"
        if job is not None:
            where += " AND job = ?"
            arguments.append(job)
        order = "DESC" if events else "ASC"
        with closing(_reader(self.path)) as connection:
            rows = _select(connection, f"{where} ORDER BY messages.id {order} LIMIT ?", (*arguments, most))
            return [_stored(row) for row in _first(rows, MOST_READ)]


def _insert_one(cursor: sqlite3.Cursor, source: int, message: HeartbeatMessage, received: float, late: bool) -> bool:
    """Insert a message; return False if it is there."""
    contents = json.dumps(travelling(message.values), separators=(",", ":"), allow_nan=False)
    number, kind, sent, promise, _ = message
    cursor.execute(
        "INSERT INTO messages (source, number, kind, time, received, promise, late, contents) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (source, number, kind, sent, received, promise, late, contents),
    )
    return cursor.rowcount == 1


def _select(connection: sqlite3.Connection, condition: str, values: Iterable[object]) -> Iterator[tuple[Any, ...]]:
    query = (
        "SELECT messages.id, received, late, job, rank, world, run, launch, number, kind, time, promise, contents "  # noqa: S608
        f"FROM messages JOIN sources ON sources.id = source WHERE {condition}"
    )
    return connection.execute(query, tuple(values))


def _first(rows: Iterable[tuple[Any, ...]], most: int) -> Iterator[tuple[Any, ...]]:
    """Yield the first row, and those after it up to ``most`` characters of contents in all."""
    size = 0
    for number, row in enumerate(rows):
        size += len(row[-1])
        if number and size > most:
            return
        yield row


def _stored(row: tuple[Any, ...]) -> StoredMessage:
    contents = {name: numeric(value) for name, value in json.loads(row[12]).items()}
    message = HeartbeatMessage(row[8], row[9], row[10], row[11], contents)
    return StoredMessage(row[0], Origin(*row[3:8]), message, row[1], bool(row[2]))


def _identity(path: Path) -> tuple[int, int] | None:
    """Return the device and the inode of a file; None if it is gone."""
    with suppress(OSError):
        status = path.stat()
        return status.st_dev, status.st_ino
    return None


def _reader(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5.0)


def _prepare(connection: sqlite3.Connection) -> None:
    columns = [row[1] for row in connection.execute("PRAGMA table_info(matters)")]
    if "alert" not in columns:  # an earlier server made the table, and can still use it
        connection.execute("ALTER TABLE matters ADD COLUMN alert TEXT")
    HeartbeatStore.pulse(connection.cursor())
