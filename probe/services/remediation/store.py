"""History in an SQLite database: every alert and action, written before anything is done.

An action that a killed service leaves behind is found as `planned` or `started` at the next start. With
``synchronous=FULL`` a committed row survives a power failure.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from probe.services.database import DatabaseKind, open_database

MOST_LABEL = 1_000
"""Most characters of a label's value that are kept."""
MOST_MESSAGE = 4_000
"""Most characters of a message that are kept."""
HOUR = 3_600.0
ANSWER_SECONDS = 2.5
"""Longest time in seconds that a request waits for the database, and as long again for another user of it here:
Alertmanager waits 10 s for an answer."""
ACTION_SECONDS = 10.0
"""Longest time in seconds that an action waits for the database."""
SAME_SECONDS = 0.001
"""Difference below which two beginnings of an alert are one."""

ActionState = Literal["ignored", "planned", "refused", "started", "done", "failed", "interrupted"]
"""``ignored``: no action is configured for the alert; ``interrupted``: the service ended before the action did."""
_UNFINISHED = "state IN ('planned', 'started')"
_COUNTED = "state NOT IN ('ignored', 'refused')"
"""Entries that the limits count."""

TABLES = f"""
CREATE TABLE actions (
    id INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, alert TEXT NOT NULL, labels TEXT NOT NULL,
    fingerprint TEXT NOT NULL, starts REAL NOT NULL, action TEXT NOT NULL, target TEXT NOT NULL,
    dry_run INTEGER NOT NULL, state TEXT NOT NULL, message TEXT NOT NULL, started REAL, ended REAL,
    process TEXT NOT NULL
);
CREATE INDEX once ON actions (fingerprint, action);
CREATE INDEX by_action ON actions (time, action);
CREATE INDEX unfinished ON actions (id) WHERE {_UNFINISHED};
CREATE TABLE pulse (id INTEGER PRIMARY KEY CHECK (id = 0), time REAL NOT NULL);
"""
KIND = DatabaseKind(TABLES, 1, 0x70726D64, "service", "name another file in database")


class ActionRow(NamedTuple):
    """Entry of the history."""

    id: int
    time: float
    """Time at which the alert came, in seconds since the epoch."""
    alert: str
    labels: Mapping[str, str]
    fingerprint: str
    starts: float
    """Time since which the alert fires."""
    action: str
    """Name of the action; empty if none is configured."""
    target: str
    dry_run: bool
    state: ActionState
    message: str
    started: float | None = None
    ended: float | None = None
    process: str = ""
    """Identity of the last program that it started."""

    @property
    def success(self) -> bool | None:
        """True if it was done, false if it was not; None for rehearsals, and as long as this is not known."""
        if self.dry_run or self.state in ("ignored", "planned", "started"):
            return None
        return self.state == "done"

    @property
    def seconds(self) -> float | None:
        """Time that it took."""
        return None if self.started is None or self.ended is None else max(0.0, self.ended - self.started)


class Admission:
    """Transaction in which the alerts of one request are admitted."""

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor

    def known(self, fingerprint: str, action: str, starts: float, tolerance: float) -> bool:
        """Return whether this firing of the alert has had the action: one with the same beginning, or one in the last
        ``tolerance`` seconds whose beginning differs by no more than these. An action that a killed service had not
        begun does not count."""
        row = self._cursor.execute(
            "SELECT 1 FROM actions WHERE fingerprint = ? AND action = ? "
            "AND (abs(starts - ?) < ? OR (abs(starts - ?) <= ? AND time > ?)) "
            "AND NOT (state = 'interrupted' AND started IS NULL) LIMIT 1",
            (fingerprint, action, starts, SAME_SECONDS, starts, tolerance, time.time() - tolerance),
        ).fetchone()
        return row is not None

    def recent(self, now: float, dry_run: bool, action: str | None = None, target: str | None = None) -> int:
        """Return the number of actions within the last hour: of all, of one name, or of one name on one target."""
        condition, values = f"time > ? AND dry_run = ? AND {_COUNTED}", [now - HOUR, dry_run]
        for name, value in (("action", action), ("target", target)):
            if value is not None:
                condition += f" AND {name} = ?"
                values.append(value)  # type: ignore[arg-type] # SQLite takes any
        (number,) = self._cursor.execute(f"SELECT count(*) FROM actions WHERE {condition}", values).fetchone()  # noqa: S608
        return int(number)

    def insert(self, row: ActionRow) -> ActionRow:
        """Insert a new entry and return it with its id."""
        labels = {name[:MOST_LABEL]: value[:MOST_LABEL] for name, value in row.labels.items()}
        ended = None if row.state == "planned" else row.time
        self._cursor.execute(
            "INSERT INTO actions (time, alert, labels, fingerprint, starts, action, target, dry_run, state, message, "
            "ended, process) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, '')",
            (
                *(row.time, row.alert[:MOST_LABEL], json.dumps(labels), row.fingerprint, row.starts),
                *(row.action, row.target[:MOST_LABEL], row.dry_run, row.state, row.message[:MOST_MESSAGE], ended),
            ),
        )
        assert self._cursor.lastrowid is not None
        return row._replace(id=self._cursor.lastrowid, ended=ended)

    def prune(self, most: int, now: float) -> None:
        """Remove the entries beyond ``most``: those without an action first, then refused ones, then the oldest. What
        the limits of the last hour count stays, however many others come."""
        (number,) = self._cursor.execute("SELECT count(*) FROM actions").fetchone()
        if number > most:
            self._cursor.execute(
                f"DELETE FROM actions WHERE id IN (SELECT id FROM actions WHERE NOT {_UNFINISHED} "  # noqa: S608
                f"AND NOT (time > ? AND {_COUNTED}) ORDER BY state != 'ignored', state != 'refused', id LIMIT ?)",
                (now - HOUR, number - most),
            )


class ActionStore:
    """Database of the history; of use from any thread.

    Raises:
        StoreError: if the file cannot be used, with the reason.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._connection, self._file = open_database(path, KIND)

    @contextmanager
    def admission(self) -> Iterator[Admission]:
        """Commit at the end of the block all that it inserts, or nothing."""
        with self._transaction(ANSWER_SECONDS) as cursor:
            yield Admission(cursor)

    def begin(self, row: int, now: float) -> None:
        """Record that an action begins."""
        self._update(row, state="started", started=now)

    def note(self, row: int, message: str, process: str) -> None:
        """Record how far an action has come, and the identity of its process."""
        self._update(row, message=message[:MOST_MESSAGE], process=process)

    def finish(self, row: int, state: ActionState, message: str, now: float) -> None:
        """Record the end of an action."""
        self._update(row, state=state, message=message[:MOST_MESSAGE], ended=now)

    def pulse(self, now: float) -> None:
        """Write a row: proof that the database can be written."""
        with self._transaction(ANSWER_SECONDS) as cursor:
            cursor.execute("INSERT OR REPLACE INTO pulse VALUES (0, ?)", (now,))

    def unfinished(self) -> list[ActionRow]:
        """Return the actions that are planned or under way."""
        return self._rows(f"{_UNFINISHED} ORDER BY id")

    def last(self, number: int) -> list[ActionRow]:
        """Return the newest entries in their order."""
        return self._rows("1 ORDER BY id DESC LIMIT ?", number)[::-1]

    def row(self, row: int) -> ActionRow | None:
        """Return one entry; None if it was removed."""
        return next(iter(self._rows("id = ?", row)), None)

    def close(self) -> None:
        """Close the database."""
        with self._lock, suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._connection.close()
        self._file.close()

    def _update(self, row: int, **values: object) -> None:
        assignments = ", ".join(f"{name} = ?" for name in values)
        with self._transaction(ACTION_SECONDS) as cursor:
            cursor.execute(f"UPDATE actions SET {assignments} WHERE id = ?", (*values.values(), row))  # noqa: S608

    @contextmanager
    def _transaction(self, seconds: float) -> Iterator[sqlite3.Cursor]:
        with within(self._lock, seconds):
            cursor = self._connection.cursor()
            try:
                cursor.execute(f"PRAGMA busy_timeout = {seconds * 1000:.0f}")
                cursor.execute("BEGIN IMMEDIATE")
                yield cursor
                cursor.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    cursor.execute("ROLLBACK")
                raise
            finally:
                cursor.close()

    def _rows(self, condition: str, *values: object) -> list[ActionRow]:
        query = (
            "SELECT id, time, alert, labels, fingerprint, starts, action, target, dry_run, state, message, started, "  # noqa: S608
            f"ended, process FROM actions WHERE {condition}"
        )
        with self._lock:
            rows = self._connection.execute(query, values).fetchall()
        return [_row(row) for row in rows]


@contextmanager
def within(lock: threading.Lock, seconds: float) -> Iterator[None]:
    """Hold ``lock``, which guards the database, for the block.

    Raises:
        sqlite3.OperationalError: if it is not free within ``seconds``.
    """
    if not lock.acquire(timeout=seconds):
        raise sqlite3.OperationalError(f"database is in use for more than {seconds:g} s")
    try:
        yield
    finally:
        lock.release()


def _row(row: tuple[Any, ...]) -> ActionRow:
    return ActionRow(*row)._replace(labels=json.loads(row[3]), dry_run=bool(row[8]))
