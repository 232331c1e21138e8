"""One pass over float32 or bfloat16 numbers in host memory for minimum, maximum, sum and sum of squares.

Available if a C compiler was present when this package was installed. It takes a third of the time of separate
reductions. Without it, everything works, but more slowly.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import numpy as np
import numpy.typing as npt

SQUARES_TOO_SMALL = 1e-31
"""Mean square below which squares in float32 have lost digits (the smallest normal float32 is 1.2e-38)."""
BRIEF = 1 << 21
"""Elements up to which the GIL is kept (a tenth of a millisecond): releasing it and acquiring it again takes longer."""

KINDS = ("float32", "bfloat16")
"""Dtypes that the compiled functions read."""
Four = tuple[float, float, float, float]
"""Minimum, maximum, sum, sum of squares."""


class _Library:
    """Compiled functions: those in ``brief`` keep the GIL, those in ``long`` release it."""

    def __init__(self, path: Path) -> None:
        brief, long = ctypes.PyDLL(str(path)), ctypes.CDLL(str(path))
        self.brief, self.long = ({kind: dll[f"probe_fused_{kind}"] for kind in KINDS} for dll in (brief, long))
        self.each_brief, self.each_long = (
            {kind: dll[f"probe_fused_{kind}_each"] for kind in KINDS} for dll in (brief, long)
        )
        for function in (*self.brief.values(), *self.long.values()):
            function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p), None
        for function in (*self.each_brief.values(), *self.each_long.values()):
            function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
            function.restype = None


def _compiled() -> _Library | None:
    for path in (Path(__file__).with_name(f"_fused{suffix}") for suffix in EXTENSION_SUFFIXES):
        with suppress(OSError, AttributeError):  # not there, or built for another machine
            return _Library(path)
    return None


class _Results(threading.local):
    """Buffer for the results of each thread."""

    def __init__(self) -> None:
        self.four = (ctypes.c_double * 4)()


_library = _compiled()
_results = _Results()
available = _library is not None
"""True if the functions were compiled, and are to be used."""


def one(address: int, size: int, kind: str = "float32") -> Four | None:
    """Return the moments of ``size`` numbers of a ``kind`` that lie side by side at ``address``.

    None if float32 cannot hold the result (NaN or Inf among the numbers, squares or sums beyond its range), or if the
    functions were not compiled.
    """
    if not available or _library is None:
        return None
    four = _results.four
    (_library.brief if size <= BRIEF else _library.long)[kind](address, size, four)
    low, high, total, squares = four
    fits = SQUARES_TOO_SMALL * size < squares < math.inf and math.isfinite(total)
    return (low, high, total, squares) if fits or low == high == squares == 0.0 else None


def each(
    addresses: Sequence[int], sizes: Sequence[int], kind: str = "float32"
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Return the moments of many arrays of one kind, a row each, and a mask of the valid rows: see :func:`one`."""
    assert _library is not None, "not compiled: see `available`"
    rows = np.empty((len(sizes), 4))
    where, lengths = np.array(addresses, np.uintp), np.array(sizes, np.uintp)
    function = (_library.each_brief if sum(sizes) <= BRIEF else _library.each_long)[kind]
    function(where.ctypes.data, lengths.ctypes.data, len(sizes), rows.ctypes.data)
    squares = rows[:, 3]
    with np.errstate(invalid="ignore"):
        sound = (SQUARES_TOO_SMALL * lengths < squares) & (squares < math.inf) & np.isfinite(rows[:, 2])
    return rows, sound | ~rows.any(axis=1)
