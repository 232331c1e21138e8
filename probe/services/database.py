"""SQLite databases of services: each is locked by one process, and what was committed survives a power failure."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, NamedTuple

from probe.core.errors import advice_of
from probe.core.language import MessageError


class StoreError(MessageError):
    """Error of a database that cannot be used."""


class DatabaseKind(NamedTuple):
    """Tables of a database, and the words of its errors."""

    tables: str
    """Statements that make the tables."""
    version: int
    """Version of the tables, in ``user_version``."""
    application: int
    """Mark of these databases, in ``application_id``."""
    service: str
    """Noun for the process that uses it."""
    advice: str
    """Way to choose another file."""


def open_database(
    path: Path, kind: DatabaseKind, prepare: Callable[[sqlite3.Connection], None] | None = None
) -> tuple[sqlite3.Connection, IO[bytes]]:
    """Open or create a database; return it with the file that is locked as long as it is open.

    Args:
        prepare: called with the database.

    Raises:
        StoreError: if the file cannot be used, with the reason.
    """
    where = f"database {path}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as opened:
            lock = opened.enter_context(path.with_name(path.name + "-lock").open("ab"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise StoreError(
                    "{where}: another {service} uses it; {advice}",
                    where=where,
                    service=kind.service,
                    advice=kind.advice,
                ) from None
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30.0)
            _make(connection, where, kind)
            if prepare is not None:
                prepare(connection)
            opened.pop_all()
    except sqlite3.DatabaseError as error:
        raise StoreError(
            "{where}: expected a database that can be written: {error}; name another file", where=where, error=error
        ) from None
    except OSError as error:
        raise StoreError("{where}: cannot be written: {error}", where=where, error=advice_of(error)) from None
    return connection, lock


def _make(connection: sqlite3.Connection, where: str, kind: DatabaseKind) -> None:
    """Make the tables of a new database; check those of another one."""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA journal_size_limit = 67108864")
    marks = tuple(connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("user_version", "application_id"))
    if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        connection.executescript(
            f"BEGIN; {kind.tables} PRAGMA user_version = {kind.version}; "
            f"PRAGMA application_id = {kind.application}; COMMIT;"
        )
    elif marks != (kind.version, kind.application):
        raise StoreError(
            "{where}: expected a database of this {service}, version {version}; {advice}",
            where=where,
            service=kind.service,
            version=kind.version,
            advice=kind.advice,
        )
