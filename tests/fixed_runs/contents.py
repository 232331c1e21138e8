"""Contents of files, without data that differ from run to run: clocks, paths, numbers of processes."""

from __future__ import annotations

import csv
import io
import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.packed_text import PACKED, unpacked_text

RUN = re.compile(r"[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d-rank(\d+)-[0-9a-f]+")
"""The name of a run's directory."""
STAMP = re.compile(r"[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d")
TIME = re.compile(r"\d{4}-\d\d-\d\d[T_ ]\d\d[:-]\d\d[:-]\d\d(?:\.\d+)?(?:[+-]\d\d:?\d\d)?|\d{8}_\d{6}")
CLOCKS = frozenset({"seconds", "wall_time", "modified_ns"})
"""Columns."""
VOLATILE = frozenset(
    {"cost_seconds", "process", "host", "overhead", "hooks_seconds", "drain_seconds", "device_seconds"}
)
"""Fields of JSON objects."""
COST = re.compile(r'"costs": \[\[.*?\]\]')
"""Seconds of the monitor in a report."""
EVENTS = "events.out.tfevents"


def content(path: Path, root: Path) -> Iterator[tuple[str, bytes]]:
    """The name and the content of ``path``, below ``root``; those of tables within it one by one."""
    name = _steady(str(path.relative_to(root)), root)
    if EVENTS in path.name:
        yield name.partition(EVENTS)[0] + EVENTS, _events(path)
    elif path.suffix == ".db":
        for table, rows in _tables(path):
            yield f"{name}/{table}", rows
    else:
        yield name, _READERS.get(path.suffix, _text)(path, root)


def _steady(text: str, root: Path) -> str:
    text = text.replace(str(root), "ROOT")
    for pattern, replacement in ((RUN, r"RUN-rank\1"), (TIME, "TIME"), (STAMP, "STAMP")):
        text = pattern.sub(replacement, text)
    return text


def _text(path: Path, root: Path) -> bytes:
    return _steady(path.read_text(encoding="utf-8", errors="surrogateescape"), root).encode(errors="surrogateescape")


def _page(path: Path, root: Path) -> bytes:
    text = PACKED.sub(lambda packed: unpacked_text(packed[0]).decode("latin-1"), path.read_text(encoding="utf-8"))
    return COST.sub("", _steady(text, root)).encode()


def _json(path: Path, root: Path) -> bytes:
    return json.dumps(_without(json.loads(_text(path, root)))).encode()


def _json_lines(path: Path, root: Path) -> bytes:
    lines = _text(path, root).decode().splitlines()
    return "\n".join(json.dumps(_without(json.loads(line))) for line in lines).encode()


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without(each) for key, each in value.items() if key not in VOLATILE}
    return [_without(each) for each in value] if isinstance(value, list) else value


def _csv(path: Path, root: Path) -> bytes:
    rows = list(csv.reader(io.StringIO(_text(path, root).decode(), newline="")))
    return _rows(rows[0], rows[1:])


def _rows(columns: list[str], rows: list[Any]) -> bytes:
    kept = [number for number, column in enumerate(columns) if column not in CLOCKS]
    return "\n".join(repr([row[number] for number in kept]) for row in [columns, *rows]).encode()


def _parquet(path: Path, _: Path) -> bytes:
    import duckdb

    with duckdb.connect() as connection:
        result = connection.execute("SELECT * FROM read_parquet(?)", [str(path)])
        return _rows([column[0] for column in result.description or ()], result.fetchall())


def _tables(path: Path) -> Iterator[tuple[str, bytes]]:
    with closing(sqlite3.connect(path)) as connection:
        names = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
        for name, sql in names:
            if sql and sql.lstrip().upper().startswith("CREATE TABLE"):
                cursor = connection.execute(
                    f'SELECT * FROM "{name}" ORDER BY rowid'
                    if "WITHOUT ROWID" not in sql
                    else f'SELECT * FROM "{name}"'
                )
                yield name, _rows([column[0] for column in cursor.description], [_known(row) for row in cursor])


def _known(row: tuple[Any, ...]) -> list[Any]:
    return [RUN.sub(r"RUN-rank\1", TIME.sub("TIME", cell)) if isinstance(cell, str) else cell for cell in row]


def _events(path: Path) -> bytes:
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

    lines = []
    for record in RawEventFileLoader(str(path)).Load():
        event = Event.FromString(record)
        event.wall_time = 0
        if not any(value.tag.startswith("probe/") for value in event.summary.value):
            lines.append(event.SerializeToString(deterministic=True))
    return b"\n".join(lines)


_READERS: dict[str, Callable[[Path, Path], bytes]] = {
    ".html": _page,
    ".json": _json,
    ".jsonl": _json_lines,
    ".csv": _csv,
    ".parquet": _parquet,
}
