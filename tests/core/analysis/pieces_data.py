"""Functions of pieces that workers import, and a run that they read."""

from __future__ import annotations

import math
import os
import signal
import time
from pathlib import Path
from typing import Any

from probe.core.analysis.pieces import Piece
from probe.core.storage.duckdb_reader import Rows

Table = dict[str, list[tuple[Any, ...]]]


def table(rows: Rows, piece: Piece) -> Table:
    """All rows by signal, in an order of their own."""
    found: Table = {}
    for signal_name in rows.signals:
        columns = ("step", "rank", "name", "micro_step", "vpp_stage", *rows.numbers(signal_name))
        query = f"SELECT {', '.join(columns)} FROM {rows.view(signal_name)} ORDER BY ALL"
        found[signal_name] = rows.connection.execute(query).fetchall()
    return found


def merged(tables: list[Table]) -> Table:
    """The rows of all pieces, in the same order."""
    names = sorted({name for each in tables for name in each})
    return {name: sorted((row for each in tables for row in each.get(name, ())), key=_plain) for name in names}


def _plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple((math.isnan(cell), cell) if isinstance(cell, float) else (False, str(cell)) for cell in row)


def ranks(piece: Piece) -> tuple[int, ...]:
    return piece.ranks


class Marked:
    """A function whose first calls with a rank end in some way; the marks are files in a folder."""

    def __init__(self, folder: Path, rank: int, times: int, end: str) -> None:
        self.folder, self.rank, self.times, self.end = folder, rank, times, end

    def __call__(self, piece: Piece) -> tuple[int, ...]:
        if self.rank in piece.ranks and self._calls(piece) <= self.times:
            ENDS[self.end](self.folder, piece)
        return piece.ranks

    def _calls(self, piece: Piece) -> int:
        (self.folder / f"call-{os.getpid()}-{time.monotonic_ns()}").touch()
        return len(list(self.folder.glob("call-*")))


class OnlyAlone:
    """A function for which a piece of more than one rank, or one rank in particular, is too large."""

    def __init__(self, end: str, never: int | None = None) -> None:
        self.end, self.never = end, never

    def __call__(self, piece: Piece) -> tuple[int, ...]:
        if len(piece.ranks) > 1 or piece.ranks[0] == self.never:
            ENDS[self.end](Path(), piece)
        return piece.ranks


class Doomed:
    """A function that never ends on one node of a Ray cluster, and on the others not before it runs on that one."""

    def __init__(self, folder: Path, node: str) -> None:
        self.folder, self.node = folder, node

    def __call__(self, piece: Piece) -> tuple[int, ...]:
        import ray

        if ray.get_runtime_context().get_node_id() == self.node:
            (self.folder / "running").touch()
            _held(self.folder, piece)
        while not (self.folder / "running").exists():
            time.sleep(0.01)
        return piece.ranks


def _exhausted(folder: Path, piece: Piece) -> None:
    raise MemoryError("the piece is too large")


def _killed(folder: Path, piece: Piece) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _wrong(folder: Path, piece: Piece) -> None:
    raise LookupError("no such row")


def _held(folder: Path, piece: Piece) -> None:
    """Wait until a file lets the piece go on."""
    while not (folder / "go").exists():
        time.sleep(0.01)


ENDS = {"exhausted": _exhausted, "killed": _killed, "wrong": _wrong, "held": _held}
