"""Rows of the compiled pass, written where they stay until the end of a step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from probe.core.backend import fused_reduce
from probe.core.backend.fused_reduce import BRIEF, BRIEF_ROWS, LONG_ROWS
from probe.core.histogram import width
from probe.core.records import Array

LEAST = 64
"""Rows of the first block of memory; each further one doubles the number."""
ROW_BYTES = fused_reduce.NUMBERS * np.dtype(np.float64).itemsize


class Slab:
    """Rows of moments, side by side in memory that grows by blocks, whose rows never move.

    Rows that are not valid stay where they are and are not used: the caller reads those tensors in another way.

    Args:
        columns: moments of a row.
        eps: limit of ``below``.
    """

    def __init__(self, columns: tuple[str, ...], eps: float) -> None:
        places = fused_reduce.places(columns) if fused_reduce.available else None
        self.writes = places is not None
        """True if the compiled pass is there and computes every column."""
        self._places, self._width = places or [], width(columns)
        self._eps, self._more = eps, fused_reduce.needed(columns)
        self._full: list[Array] = []
        self._before = 0
        """Rows of the full blocks."""
        self._room = LEAST
        self._begin()

    def _begin(self) -> None:
        """Begin another block."""
        self._block = np.empty((self._room if self.writes else 0, fused_reduce.NUMBERS))
        self._address, self._used = self._block.ctypes.data, 0

    def read(self, address: int, size: int, kind: str) -> int | None:
        """Write the moments of ``size`` numbers of a ``kind`` at ``address``; return the number of the row, None if it
        is not valid."""
        if self._used == len(self._block):
            self._grow(1)
        place = self._used
        self._used += 1
        to, write = self._address + place * ROW_BYTES, (BRIEF_ROWS if size <= BRIEF else LONG_ROWS)[kind]
        return self._before + place if write(address, size, self._eps, self._more, to) else None

    def read_each(
        self, addresses: Sequence[int], sizes: Sequence[int], kind: str
    ) -> tuple[range, npt.NDArray[np.bool_]]:
        """Write a row for each of many arrays of one kind; return the numbers of the rows and a mask of the valid
        ones."""
        number = len(sizes)
        if self._used + number > len(self._block):
            self._grow(number)
        rows = self._block[self._used : self._used + number]
        first = self._before + self._used
        self._used += number
        _, valid = fused_reduce.each(addresses, sizes, kind, self._eps, self._more, rows)
        return range(first, first + number), valid

    def _grow(self, number: int) -> None:
        """Make room for at least ``number`` rows."""
        self._full.append(self._block[: self._used])
        self._before += self._used
        self._room = max(2 * self._room, number)
        self._begin()

    def drain(self) -> Array:
        """Return a copy of all rows, and drop them."""
        rows = self.rows()
        self.clear()
        return rows

    def rows(self) -> Array:
        """Return a copy of all rows, with the columns."""
        if not self.writes:
            return np.empty((0, self._width))
        rows: Array = np.concatenate([*self._full, self._block[: self._used]])[:, self._places]
        return rows

    def clear(self) -> None:
        """Drop the rows; their memory is used again."""
        if self._full:
            self._full, self._before = [], 0
            self._begin()
        self._used = 0
