"""The history: the latest steps, held in memory until a rule fires; then they are written, otherwise dropped."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from probe.core.histogram import BINS, HISTOGRAM, width
from probe.core.records import Batch, Snapshot

MOST_BYTES = 256 << 20
"""Largest size of the held steps; beyond it, the oldest are dropped."""
LEVEL = 1
"""Level of compression: numbers hardly shrink more at a higher one."""
DESCRIBED = {"keys": 250, "shapes": 80, "dtypes": 8, "coverage": 250, "order": 8}
"""Fields of a batch besides its numbers, and the approximate number of bytes per row of each. Steps in which a field is
equal share it; otherwise each counts its own (activations whose sizes change from step to step)."""


class _Packed(NamedTuple):
    """A snapshot whose numbers are compressed."""

    snapshot: Snapshot
    """Snapshot without numbers; its batches share equal fields with those of other steps."""
    columns: tuple[tuple[str, ...], ...]
    numbers: tuple[bytes, ...]
    """Compressed numbers of each batch."""
    own: int
    """Bytes of the fields that its batches share with no earlier step."""

    @property
    def size(self) -> int:
        return self.own + sum(map(len, self.numbers))


class HistoryBuffer:
    """Ring buffer of snapshots: a finding releases it and as many later steps as it holds.

    Args:
        steps: number of steps that are held, and of steps that are written after one with a finding.
        most_bytes: largest size of the held steps; the latest is held in any case.
    """

    def __init__(self, steps: int, most_bytes: int = MOST_BYTES) -> None:
        self._held: deque[_Packed] = deque()
        self._steps, self._most_bytes = steps, most_bytes
        self._bytes = self._following = 0
        self._alike: dict[tuple[str, str], Any] = {}
        """Fields of ``DESCRIBED`` of the latest batch of each signal."""
        self.unwritten = 0
        """Number of steps dropped because there was no finding near them."""

    def admit(self, snapshot: Snapshot) -> Iterator[Snapshot]:
        """Yield the snapshots to write now, in order: none, this one, or the held ones and this one."""
        if snapshot.findings:
            self._following = self._steps
            yield from self.release()
            yield snapshot
        elif self._following:
            self._following -= 1
            yield snapshot
        else:
            self._hold(snapshot)

    def release(self) -> Iterator[Snapshot]:
        """Yield and remove the held snapshots, in order."""
        while self._held:
            packed = self._held.popleft()
            self._bytes -= packed.size
            yield _unpacked(packed)

    def forget(self) -> None:
        """Drop the held snapshots."""
        self.unwritten += len(self._held)
        self._held.clear()
        self._bytes = 0

    def _hold(self, snapshot: Snapshot) -> None:
        packed = self._packed(snapshot)
        self._held.append(packed)
        self._bytes += packed.size
        while len(self._held) > self._steps or (self._bytes > self._most_bytes and len(self._held) > 1):
            self._bytes -= self._held.popleft().size
            self.unwritten += 1

    def _packed(self, snapshot: Snapshot) -> _Packed:
        bare, own = [], 0
        for batch in snapshot.batches:
            shared, fresh = self._shared(batch)
            bare.append(replace(batch, columns={}, **shared))
            own += fresh
        columns = tuple(tuple(batch.columns) for batch in snapshot.batches)
        held = (
            [np.ascontiguousarray(c, dtype=np.float64).tobytes() for c in b.columns.values()] for b in snapshot.batches
        )
        numbers = tuple(zlib.compress(b"".join(each), LEVEL) for each in held)
        return _Packed(replace(snapshot, batches=bare), columns, numbers, own)

    def _shared(self, batch: Batch) -> tuple[dict[str, Any], int]:
        """Return the fields of ``batch``, those of an earlier step if they are equal, and the bytes of the others."""
        shared, fresh = {}, 0
        for field, size in DESCRIBED.items():
            value: Any = getattr(batch, field)
            known: Any = self._alike.get((batch.signal, field))
            if not (np.array_equal(value, known) if field == "order" else value == known):
                self._alike[batch.signal, field] = known = value
                fresh += size * len(value)
            shared[field] = known
        return shared, fresh


def _unpacked(packed: _Packed) -> Snapshot:
    batches = []
    for batch, names, numbers in zip(packed.snapshot.batches, packed.columns, packed.numbers, strict=True):
        ends = np.cumsum([len(batch) * width([name]) for name in names])
        parts = np.split(np.frombuffer(zlib.decompress(numbers), dtype=np.float64), ends[:-1])
        table = (
            part.reshape(-1, BINS) if name == HISTOGRAM else part for name, part in zip(names, parts, strict=False)
        )
        batches.append(replace(batch, columns=dict(zip(names, table, strict=True))))
    return replace(packed.snapshot, batches=batches)
