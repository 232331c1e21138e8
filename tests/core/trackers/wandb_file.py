"""Files of runs of W&B, read without its code: blocks of a LevelDB log, whose records are protocol buffers.

https://github.com/google/leveldb/blob/main/doc/log_format.md, https://protobuf.dev/programming-guides/encoding/, and
the numbers of fields in ``wandb_internal.proto``.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

BLOCK = 32768
HEADER = b":W&B"
HEADER_BYTES = 7
HISTORY, SUMMARY, ARTIFACT, ALERT, METRIC, RUN = 2, 3, 8, 10, 12, 17
"""Fields of a record."""


class WandbRun(NamedTuple):
    """What a file holds."""

    rows: list[dict[str, Any]]
    """Rows of the history, with what they hold."""
    summary: dict[str, Any]
    alerts: list[tuple[str, str, str]]
    """Title, text and level of each."""
    metrics: dict[str, str]
    """The metric on whose axis another is shown."""
    artifacts: list[str]
    project: str


def read_run(folder: Path) -> WandbRun:
    """The only run in ``folder``."""
    (run,) = read_runs(folder)
    return run


def read_runs(folder: Path) -> list[WandbRun]:
    """All runs in ``folder``, in the order in which they ended."""
    paths = folder.glob("offline-run-*/*.wandb")
    return [read_file(path) for path in sorted(paths, key=lambda path: path.stat().st_ctime_ns)]


def read_file(path: Path) -> WandbRun:
    """The run in a file."""
    run = WandbRun([], {}, [], {}, [], "")
    for record in records(path):
        for number, value in fields(record):
            if number == HISTORY:
                run.rows.append(items(value))
            elif number == SUMMARY:
                run.summary.update(items(value))
            elif number == ALERT:
                about = dict(fields(value))
                run.alerts.append((about[1].decode(), about[2].decode(), about[3].decode()))
            elif number == METRIC:
                about = dict(fields(value))
                run.metrics[(about.get(1) or about.get(2, b"")).decode()] = about.get(4, b"").decode()
            elif number == ARTIFACT:
                run.artifacts.append(dict(fields(value))[4].decode())
            elif number == RUN:
                run = run._replace(project=dict(fields(value))[3].decode())
    return run


def items(message: bytes) -> dict[str, Any]:
    """Items of a history or a summary, each a key and a JSON text."""
    found = {}
    for number, value in fields(message):
        about = list(fields(value)) if number == 1 else []
        key = "/".join(part.decode() for n, part in about if n in (1, 2) and part)
        if about:
            found[key] = json.loads(dict(about)[16])
    return found


def records(path: Path, header: bytes = HEADER) -> Iterator[bytes]:
    """Whole records, put together from those of the blocks."""
    data, record = path.read_bytes(), b""
    assert data[:4] == header
    place = HEADER_BYTES
    while place + 7 <= len(data):
        if BLOCK - place % BLOCK < 7:
            place += BLOCK - place % BLOCK
            continue
        checksum, length, kind = struct.unpack_from("<IHB", data, place)
        part = data[place + 7 : place + 7 + length]
        assert zlib.crc32(bytes([kind]) + part) == checksum
        record = part if kind in (1, 2) else record + part
        if kind in (1, 4):
            yield record
        place += 7 + length


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Fields of a message: numbers, and values as bytes or whole numbers."""
    place = 0
    while place < len(message):
        tag, place = varint(message, place)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, place = varint(message, place)
        elif wire == 2:
            length, place = varint(message, place)
            value, place = message[place : place + length], place + length
        else:
            size = {1: 8, 5: 4}[wire]
            value, place = message[place : place + size], place + size
        yield number, value


def varint(message: bytes, place: int) -> tuple[int, int]:
    """A whole number, and the place behind it."""
    value = shift = 0
    while True:
        byte = message[place]
        value, place, shift = value | (byte & 127) << shift, place + 1, shift + 7
        if byte < 128:
            return value, place
