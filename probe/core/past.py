"""The latest steps, held in memory until a rule finds something: then they are written, else never."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from probe.core.histogram import BINS, HISTOGRAM, width
from probe.core.records import Batch, Snapshot

MOST_BYTES = 256 << 20
"""Of packed numbers that are held; the oldest steps give way."""
LEVEL = 1
"""Of compression: numbers hardly shrink more at a higher one."""


class _Packed(NamedTuple):
    """A snapshot whose numbers are compressed."""

    snapshot: Snapshot
    """Without numbers; its batches share what they are about with those of other steps."""
    columns: tuple[tuple[str, ...], ...]
    numbers: tuple[bytes, ...]
    """One for each batch."""

    @property
    def size(self) -> int:
        return sum(map(len, self.numbers))


class Past:
    """Holds what comes until there is a finding, and lets it go on from there for as many steps again.

    Args:
        steps: how many steps are held, and how many are written after one with a finding.
        most_bytes: that their numbers may take; at least the latest step is held.
    """

    def __init__(self, steps: int, most_bytes: int = MOST_BYTES) -> None:
        self._held: deque[_Packed] = deque()
        self._steps, self._most_bytes = steps, most_bytes
        self._bytes = self._following = 0
        self._alike: dict[str, Batch] = {}
        self.unwritten = 0
        """Steps that were given up because nothing was found near them."""

    def admit(self, snapshot: Snapshot) -> Iterator[Snapshot]:
        """What is to be written now, in order: nothing, this snapshot, or what was held and this one."""
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
        """Everything that is held, in order; it is held no longer."""
        while self._held:
            packed = self._held.popleft()
            self._bytes -= packed.size
            yield _unpacked(packed)

    def forget(self) -> None:
        """Gives up what is held."""
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
        batches = [self._shared(batch) for batch in snapshot.batches]
        bare = [replace(batch, columns={}) for batch in batches]
        columns = tuple(tuple(batch.columns) for batch in batches)
        numbers = tuple(zlib.compress(_bytes_of(batch), LEVEL) for batch in batches)
        return _Packed(replace(snapshot, batches=bare), columns, numbers)

    def _shared(self, batch: Batch) -> Batch:
        """``batch`` with the very keys, shapes and so on of an earlier step, where they are equal."""
        known = self._alike.get(batch.signal)
        if known is None or (batch.keys, batch.shapes, batch.dtypes, batch.coverage) != (
            known.keys,
            known.shapes,
            known.dtypes,
            known.coverage,
        ):
            self._alike[batch.signal] = known = replace(batch, columns={})
        return replace(batch, keys=known.keys, shapes=known.shapes, dtypes=known.dtypes, coverage=known.coverage)


def _bytes_of(batch: Batch) -> bytes:
    return b"".join(np.ascontiguousarray(column, dtype=np.float64).tobytes() for column in batch.columns.values())


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
