"""One pass over float32, bfloat16 or float16 numbers in host memory for all moments but histograms. A row is valid
unless finite numbers, or their sums or squares, are beyond the range of float32.

Available if a C compiler was present when this package was installed. It takes about the time in which the numbers are
read. Without it, everything works, but more slowly.
"""

from __future__ import annotations

import ctypes
import functools
from array import array
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from probe.core.histogram import width

Array = npt.NDArray[np.float64]

BRIEF = 1 << 21
"""Elements up to which the GIL is kept (a tenth of a millisecond): releasing it and acquiring it again takes longer."""

FLOAT32, BFLOAT16, FLOAT16 = range(3)
"""Kinds of elements that the compiled functions read."""
KINDS = {"float32": FLOAT32, "bfloat16": BFLOAT16, "float16": FLOAT16}
"""Kinds by the name of the dtype."""
NAMES = ("min", "max", "sum", "sumsq", "below", "m2", "mean", "nans", "infs")
"""Numbers of a row, in their order. The mean is there where deviations were computed, as exactly as they need it."""
NUMBERS = len(NAMES)
ROW_BYTES = NUMBERS * np.dtype(np.float64).itemsize
FOUR, BELOW, DEVIATIONS = 0, 1, 2
"""Moments to compute: the first four always, ``below`` and ``m2`` if the bit is set."""
LEAST = 64
"""Rows for which a slab has memory from the beginning."""


def _compiled() -> tuple[Any, Any, Any, Any] | None:
    """Return the functions for one array and for many: two that keep the GIL, then two that release it."""
    path = str(Path(__file__).with_name("_fused.so"))
    with suppress(OSError, AttributeError):  # not there, or built for another machine or version
        brief, long = ctypes.PyDLL(path), ctypes.CDLL(path)
        functions = brief.probe_row, brief.probe_rows, long.probe_row, long.probe_rows
        address, size, how = ctypes.c_void_p, ctypes.c_size_t, (ctypes.c_double, ctypes.c_int, ctypes.c_void_p)
        for one, many in (functions[:2], functions[2:]):
            one.argtypes, one.restype = (address, size, ctypes.c_int, *how), ctypes.c_int
            many.argtypes, many.restype = (address, address, address, size, *how, address), None
        return functions
    return None


def _absent(*_: object) -> int:
    """Write no row."""
    return 0


_functions = _compiled()
available = _functions is not None
"""True if the functions were compiled, and are to be used."""
_brief_row, _brief_rows, _long_row, _long_rows = _functions or (_absent,) * 4


def needed(columns: Collection[str]) -> int:
    """Return what has to be computed for ``columns``."""
    return (BELOW if "below" in columns else FOUR) | (DEVIATIONS if "m2" in columns else FOUR)


@functools.cache
def _places(columns: tuple[str, ...]) -> list[int] | None:
    return [NAMES.index(name) for name in columns] if set(NAMES).issuperset(columns) else None


def places(columns: tuple[str, ...]) -> list[int] | None:
    """Return the indices of ``columns`` in a row; None if one of them is not there, or nothing was compiled."""
    return _places(columns) if available else None


def one(columns: tuple[str, ...], address: int, size: int, eps: float) -> list[float] | None:
    """Return the row of one float32 array, without what a list costs; None if it is not valid or ``columns`` have no
    :func:`places`."""
    indices = places(columns)
    if indices is None:
        return None
    row, function = array("d", bytes(ROW_BYTES)), _brief_row if size <= BRIEF else _long_row
    valid = function(address, size, FLOAT32, eps, needed(columns), row.buffer_info()[0])
    return [row[index] for index in indices] if valid else None


class HostRows:
    """Moments in host memory, a row for each array. What NumPy does is left to the thread that needs them."""

    def __init__(self, buffer: array[float], columns: list[int]) -> None:
        self._buffer, self._columns = buffer, columns

    def __call__(self) -> Array:
        rows: Array = np.frombuffer(self._buffer, np.float64).reshape(-1, NUMBERS)[:, self._columns]
        return rows

    def __array__(self, *args: Any, **kwargs: Any) -> Array:
        return np.asarray(self(), *args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HostRows) and self._buffer.tobytes() == other._buffer.tobytes()

    __hash__ = None  # type: ignore[assignment]


class FixedArrays:
    """Arrays whose moments one call reads, now and again as long as they stay where they are. No function of NumPy
    runs: between the operators of a framework its first ones take longer than the pass.

    Args:
        columns: moments of a row, of which :func:`places` knows the places.
        kinds: one of all arrays, or one of each.
        eps: limit of ``below``, rounded to float32.
    """

    __slots__ = ("_blank", "_columns", "_each", "_function", "_how", "addresses")

    def __init__(
        self,
        columns: tuple[str, ...],
        addresses: Sequence[int],
        sizes: Sequence[int],
        kinds: int | Sequence[int] = FLOAT32,
        eps: float = 0.0,
    ) -> None:
        number = len(sizes)
        self.addresses, self._columns = addresses, places(columns) or []
        kinds = bytes((kinds,)) * number if isinstance(kinds, int) else bytes(kinds)
        self._each = array("L", addresses), array("L", sizes), array("B", kinds)
        self._how = number, eps, needed(columns)
        self._function = _brief_rows if sum(sizes) <= BRIEF else _long_rows
        self._blank = bytes(ROW_BYTES * number), bytes(number)

    def read(self) -> tuple[HostRows, bytes]:
        """Return a row for each array, and for each whether it is valid: not if finite numbers, or their sums or
        squares, are beyond the range of float32."""
        buffer = array("d", self._blank[0])
        return HostRows(buffer, self._columns), self.write(buffer.buffer_info()[0])

    def write(self, rows: int) -> bytes:
        """Write ``NUMBERS`` numbers for each array to the address ``rows``; return for each whether they are valid."""
        valid = array("B", self._blank[1])
        self._function(*(x.buffer_info()[0] for x in self._each), *self._how, rows, valid.buffer_info()[0])
        return valid.tobytes()


def moments(
    columns: tuple[str, ...],
    addresses: Sequence[int],
    sizes: Sequence[int],
    kinds: int | Sequence[int] = FLOAT32,
    eps: float = 0.0,
) -> tuple[HostRows, bytes]:
    """Return what :meth:`FixedArrays.read` does, of arrays that are read once."""
    return FixedArrays(columns, addresses, sizes, kinds, eps).read()


class Slab:
    """Rows of moments in memory that grows, until the end of a step.

    Rows that are not valid stay where they are and are not used: the caller reads those arrays in another way.

    Args:
        columns: moments of a row.
        eps: limit of ``below``.
    """

    def __init__(self, columns: tuple[str, ...], eps: float) -> None:
        self._columns, self._eps, self._more = columns, eps, needed(columns)
        self._places = places(columns)
        self.writes = self._places is not None
        """True if the compiled pass is there and computes every column."""
        self._used, self._none = 0, np.empty((0, width(columns)))
        self._make(LEAST if self.writes else 0)

    def _make(self, rows: int) -> None:
        self._rows = np.empty((rows, NUMBERS))
        self._address = self._rows.ctypes.data

    def read(self, address: int, size: int, kind: int) -> int | None:
        """Write the moments of ``size`` numbers of a ``kind`` at ``address``; return the number of the row, None if it
        is not valid."""
        row = self._used
        if row >= len(self._rows):
            self._grow(1)
        self._used = row + 1
        function = _brief_row if size <= BRIEF else _long_row
        return row if function(address, size, kind, self._eps, self._more, self._address + row * ROW_BYTES) else None

    def read_each(self, addresses: Sequence[int], sizes: Sequence[int], kinds: Sequence[int]) -> list[int | None]:
        """Write a row for each of many arrays; return the numbers of the rows, None for one that is not valid."""
        first = self._used
        if first + len(sizes) > len(self._rows):
            self._grow(len(sizes))
        self._used += len(sizes)
        arrays = FixedArrays(self._columns, addresses, sizes, kinds, self._eps)
        valid = arrays.write(self._address + first * ROW_BYTES)
        return [row if is_valid else None for row, is_valid in enumerate(valid, first)]

    def _grow(self, number: int) -> None:
        """Make room for at least ``number`` further rows."""
        written = self._rows[: self._used]
        self._make(2 * (self._used + number))
        self._rows[: self._used] = written

    def drain(self) -> Array:
        """Return a copy of all rows, and drop them."""
        rows = self.rows()
        self.clear()
        return rows

    def rows(self) -> Array:
        """Return a copy of all rows, with the columns."""
        if not self._used or self._places is None:
            return self._none
        rows: Array = self._rows[: self._used, self._places]
        return rows

    def clear(self) -> None:
        """Drop the rows; their memory is used again."""
        self._used = 0
