"""The history: the latest steps, held in memory until a rule fires; then they are written, otherwise dropped."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

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


class HistoryBuffer:
    """Ring buffer of snapshots: a finding releases it and as many later steps as it holds.

    Args:
        steps: number of steps that are held, and of steps that are written after one with a finding.
        most_bytes: largest size of the held steps; the latest is held in any case.
    """

    def __init__(self, steps: int, most_bytes: int = MOST_BYTES) -> None:
        self._packed_steps: deque[tuple[int, Callable[[], Snapshot]]] = deque()
        """The bytes of each held step, and the function that unpacks its snapshot."""
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
        while self._packed_steps:
            size, unpack = self._packed_steps.popleft()
            self._bytes -= size
            yield unpack()

    def forget(self) -> None:
        """Drop the held snapshots."""
        self.unwritten += len(self._packed_steps)
        self._packed_steps.clear()
        self._bytes = 0

    def _hold(self, snapshot: Snapshot) -> None:
        packed = [self._packed(batch) for batch in snapshot.batches]
        size = sum(size for size, _ in packed)
        self._packed_steps.append(
            (size, partial(_unpacked, replace(snapshot, batches=[]), [unpack for _, unpack in packed]))
        )
        self._bytes += size
        while len(self._packed_steps) > self._steps or (self._bytes > self._most_bytes and len(self._packed_steps) > 1):
            self._bytes -= self._packed_steps.popleft()[0]
            self.unwritten += 1

    def _packed(self, batch: Batch) -> tuple[int, Callable[[], Batch]]:
        """Compress the numbers of ``batch``. Return the bytes, without fields that it shares with an earlier step, and
        the function that restores the batch."""
        fields, size = self._shared(batch)
        columns = [np.ascontiguousarray(column, dtype=np.float64).tobytes() for column in batch.columns.values()]
        numbers = zlib.compress(b"".join(columns), LEVEL)
        bare = replace(batch, columns={}, **fields)
        return size + len(numbers), partial(_restored, bare, tuple(batch.columns), numbers)

    def _shared(self, batch: Batch) -> tuple[dict[str, Any], int]:
        """Return the fields of ``batch``, those of an earlier step if they are equal, and the bytes of the others."""
        shared, fresh = {}, 0
        for field, size in DESCRIBED.items():
            value: Any = getattr(batch, field)
            earlier: Any = self._alike.get((batch.signal, field))
            if not (np.array_equal(value, earlier) if field == "order" else value == earlier):
                self._alike[batch.signal, field] = earlier = value
                fresh += size * len(value)
            shared[field] = earlier
        return shared, fresh


def _unpacked(bare: Snapshot, batches: Iterable[Callable[[], Batch]]) -> Snapshot:
    return replace(bare, batches=[unpack() for unpack in batches])


def _restored(bare: Batch, names: Sequence[str], numbers: bytes) -> Batch:
    """Return ``bare`` with its columns, of these names, from their compressed ``numbers``."""
    ends = np.cumsum([len(bare) * width([name]) for name in names])
    parts = np.split(np.frombuffer(zlib.decompress(numbers), dtype=np.float64), ends[:-1])
    columns = {
        name: part.reshape(-1, BINS) if name == HISTOGRAM else part for name, part in zip(names, parts, strict=False)
    }
    return replace(bare, columns=columns)
