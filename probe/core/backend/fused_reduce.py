"""One pass over float32, bfloat16 or float16 numbers in host memory for all moments but histograms. It succeeds where
there is neither NaN nor Inf.

Available if a C compiler was present when this package was installed. It takes about the time in which the numbers are
read. Without it, everything works, but more slowly.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from array import array
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

SQUARES_TOO_SMALL = 1e-31
"""Mean square below which squares in float32 have lost digits (the smallest normal float32 is 1.2e-38)."""
BRIEF = 1 << 21
"""Elements up to which the GIL is kept (a tenth of a millisecond): releasing it and acquiring it again takes longer."""

KINDS = ("float32", "bfloat16", "float16")
"""Dtypes that the compiled functions read."""
NAMES = ("min", "max", "sum", "sumsq", "below", "m2", "mean", "nans", "infs")
"""Numbers of a row, in their order. The mean is there where deviations were computed, as exactly as they need it."""
NUMBERS = len(NAMES)
FOUR, BELOW, DEVIATIONS = 0, 1, 2
"""Moments to compute: the first four always, ``below`` and ``m2`` if the bit is set."""
Row = tuple[float, ...]
"""``NUMBERS`` numbers."""


class _Library:
    """Compiled functions: those in ``brief`` keep the GIL, those in ``long`` release it."""

    def __init__(self, path: Path) -> None:
        brief, long = ctypes.PyDLL(str(path)), ctypes.CDLL(str(path))
        self.brief, self.long = ({kind: dll[f"probe_row_{kind}"] for kind in KINDS} for dll in (brief, long))
        self.each_brief, self.each_long = ({kind: dll[f"probe_rows_{kind}"] for kind in KINDS} for dll in (brief, long))
        how = (ctypes.c_double, ctypes.c_int, ctypes.c_void_p)
        for function in (*self.brief.values(), *self.long.values()):
            function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_size_t, *how), ctypes.c_int
        for function in (*self.each_brief.values(), *self.each_long.values()):
            function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, *how, ctypes.c_void_p)
            function.restype = None


def _compiled() -> _Library | None:
    with suppress(OSError, AttributeError):  # not there, or built for another machine
        return _Library(Path(__file__).with_name("_fused.so"))
    return None


class _Results(threading.local):
    """Buffer for the results of each thread."""

    def __init__(self) -> None:
        self.row = (ctypes.c_double * NUMBERS)()


_library = _compiled()
_results = _Results()
available = _library is not None
"""True if the functions were compiled, and are to be used."""
BRIEF_ROWS, LONG_ROWS = ({}, {}) if _library is None else (_library.brief, _library.long)
"""The compiled functions of :func:`write` by kind: for up to ``BRIEF`` elements, and for more."""


def needed(columns: Collection[str]) -> int:
    """Return what has to be computed for ``columns``."""
    return (BELOW if "below" in columns else FOUR) | (DEVIATIONS if "m2" in columns else FOUR)


@functools.cache
def places(columns: tuple[str, ...]) -> list[int] | None:
    """Return the indices of ``columns`` in a row; None if one of them is not there, or nothing was compiled."""
    return [NAMES.index(name) for name in columns] if available and set(NAMES).issuperset(columns) else None


def one(address: int, size: int, kind: str = "float32", eps: float = 0.0, more: int = FOUR) -> Row | None:
    """Return the moments of ``size`` numbers of a ``kind`` that lie side by side at ``address``.

    None if float32 cannot hold the result (NaN or Inf among the numbers, squares or sums beyond its range), or if the
    functions were not compiled.

    Args:
        eps: limit of ``below``, rounded to float32.
        more: moments to compute besides the first four, as :func:`needed` returns it; the rest of the row is without
            meaning.
    """
    if not available:
        return None
    row = _results.row
    return tuple(row) if write(address, size, kind, eps, more, ctypes.addressof(row)) else None


def write(address: int, size: int, kind: str, eps: float, more: int, row: int) -> bool:
    """Write the moments that :func:`one` returns to the address ``row``; return false if they are not valid."""
    assert _library is not None, "not compiled: see `available`"
    return bool((BRIEF_ROWS if size <= BRIEF else LONG_ROWS)[kind](address, size, eps, more, row))


class Arrays:
    """Arrays of one kind, whose moments one call reads, now and again as long as they stay where they are. No function
    of NumPy runs: between the operators of a framework its first ones take longer than the pass.

    Args:
        eps: limit of ``below``, rounded to float32.
        more: moments to compute besides the first four, see :func:`needed`.
    """

    __slots__ = ("_blank", "_each", "_function", "_more", "addresses", "sizes")

    def __init__(
        self,
        addresses: Sequence[int],
        sizes: Sequence[int],
        kind: str = "float32",
        eps: float = 0.0,
        more: int = FOUR,
    ) -> None:
        assert _library is not None, "not compiled: see `available`"
        number = len(sizes)
        self.addresses, self.sizes = addresses, sizes
        self._each, self._more = (array("L", addresses), array("L", sizes)), (number, eps, more)
        self._function = (_library.each_brief if sum(sizes) <= BRIEF else _library.each_long)[kind]
        self._blank = bytes(NUMBERS * number * 8), bytes(number)

    def read(self, rows: int | None = None) -> tuple[array[float], bytes]:
        """Return the moments of each array, :data:`NUMBERS` side by side, and for each whether they are valid: see
        :func:`one`.

        Args:
            rows: address to which the moments are written instead.
        """
        (addresses, sizes), (numbers, flags) = self._each, self._blank
        buffer, valid = array("d", numbers), array("B", flags)
        into = buffer.buffer_info()[0] if rows is None else rows
        places = addresses.buffer_info()[0], sizes.buffer_info()[0]
        self._function(*places, *self._more, into, valid.buffer_info()[0])
        return buffer, valid.tobytes()


def rows_of(buffer: array[float]) -> npt.NDArray[np.float64]:
    """Return the moments that :meth:`Arrays.read` has returned, a row for each array."""
    return np.frombuffer(buffer, np.float64).reshape(-1, NUMBERS)


def each(
    addresses: Sequence[int],
    sizes: Sequence[int],
    kind: str = "float32",
    eps: float = 0.0,
    more: int = FOUR,
    rows: npt.NDArray[np.float64] | None = None,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Return the moments of many arrays of one kind, a row each, and a mask of the valid rows: see :func:`one`.

    Args:
        rows: where the moments are written, side by side; if None, into a new array.
    """
    buffer, valid = Arrays(addresses, sizes, kind, eps, more).read(None if rows is None else rows.ctypes.data)
    return rows_of(buffer) if rows is None else rows, np.frombuffer(valid, np.bool_)
