"""One pass over float32, bfloat16 or float16 numbers in host memory for all moments but counts of NaN and Inf, which
are zero where the pass succeeds.

Available if a C compiler was present when this package was installed. It takes about the time in which the numbers are
read. Without it, everything works, but more slowly.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import numpy as np
import numpy.typing as npt

SQUARES_TOO_SMALL = 1e-31
"""Mean square below which squares in float32 have lost digits (the smallest normal float32 is 1.2e-38)."""
BRIEF = 1 << 21
"""Elements up to which the GIL is kept (a tenth of a millisecond): releasing it and acquiring it again takes longer."""

KINDS = ("float32", "bfloat16", "float16")
"""Dtypes that the compiled functions read."""
NAMES = ("min", "max", "sum", "sumsq", "below", "m2")
"""Moments of a row, in their order; then follows the mean, where deviations were computed, as exactly as they need
it."""
FOUR, BELOW, DEVIATIONS = 0, 1, 2
"""Moments to compute: the first four always, ``below`` and ``m2`` if the bit is set."""
NUMBERS = len(NAMES) + 1
Row = tuple[float, float, float, float, float, float, float]


class _Library:
    """Compiled functions: those in ``brief`` keep the GIL, those in ``long`` release it."""

    def __init__(self, path: Path) -> None:
        brief, long = ctypes.PyDLL(str(path)), ctypes.CDLL(str(path))
        self.brief, self.long = ({kind: dll[f"probe_moments_{kind}"] for kind in KINDS} for dll in (brief, long))
        self.each_brief, self.each_long = (
            {kind: dll[f"probe_moments_{kind}_each"] for kind in KINDS} for dll in (brief, long)
        )
        how = (ctypes.c_double, ctypes.c_int, ctypes.c_void_p)
        for function in (*self.brief.values(), *self.long.values()):
            function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_size_t, *how), None
        for function in (*self.each_brief.values(), *self.each_long.values()):
            function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, *how)
            function.restype = None


def _compiled() -> _Library | None:
    for path in (Path(__file__).with_name(f"_fused{suffix}") for suffix in EXTENSION_SUFFIXES):
        with suppress(OSError, AttributeError):  # not there, or built for another machine
            return _Library(path)
    return None


class _Results(threading.local):
    """Buffer for the results of each thread."""

    def __init__(self) -> None:
        self.row = (ctypes.c_double * NUMBERS)()


_library = _compiled()
_results = _Results()
available = _library is not None
"""True if the functions were compiled, and are to be used."""


def needed(columns: Collection[str]) -> int:
    """Return what has to be computed for ``columns``."""
    return (BELOW if "below" in columns else FOUR) | (DEVIATIONS if "m2" in columns else FOUR)


def one(address: int, size: int, kind: str = "float32", eps: float = 0.0, more: int = FOUR) -> Row | None:
    """Return the moments of ``size`` numbers of a ``kind`` that lie side by side at ``address``.

    None if float32 cannot hold the result (NaN or Inf among the numbers, squares or sums beyond its range), or if the
    functions were not compiled.

    Args:
        eps: limit of ``below``, rounded to float32.
        more: moments to compute besides the first four, as :func:`needed` returns it; the rest of the row is without
            meaning.
    """
    if not available or _library is None:
        return None
    row = _results.row
    (_library.brief if size <= BRIEF else _library.long)[kind](address, size, eps, more, row)
    low, high, total, squares, below, apart, mean = row
    fits = SQUARES_TOO_SMALL * size < squares < math.inf and math.isfinite(total)
    fits = fits and not (more & DEVIATIONS and math.isnan(apart))
    return (low, high, total, squares, below, apart, mean) if fits or low == high == squares == 0.0 else None


def each(
    addresses: Sequence[int], sizes: Sequence[int], kind: str = "float32", eps: float = 0.0, more: int = FOUR
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Return the moments of many arrays of one kind, a row each, and a mask of the valid rows: see :func:`one`."""
    assert _library is not None, "not compiled: see `available`"
    rows = np.empty((len(sizes), NUMBERS))
    where, lengths = np.array(addresses, np.uintp), np.array(sizes, np.uintp)
    function = (_library.each_brief if sum(sizes) <= BRIEF else _library.each_long)[kind]
    function(where.ctypes.data, lengths.ctypes.data, len(sizes), eps, more, rows.ctypes.data)
    squares = rows[:, 3]
    with np.errstate(invalid="ignore"):
        sound = (SQUARES_TOO_SMALL * lengths < squares) & (squares < math.inf) & np.isfinite(rows[:, 2])
    if more & DEVIATIONS:
        sound &= ~np.isnan(rows[:, 5])
    return rows, sound | ~rows[:, :4].any(axis=1)
