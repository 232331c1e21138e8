"""One pass over float32 numbers in host memory for minimum, maximum, sum and sum of squares, where a C compiler was at
hand when this package was installed. It takes a third of the time of one reduction after another.

Everything works without it, more slowly.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from threading import local

SQUARES_TOO_SMALL = 1e-31
"""Mean square below which squares in float32 have lost digits (the smallest normal float32 is 1.2e-38)."""
Four = tuple[float, float, float, float]
"""Minimum, maximum, sum, sum of squares."""


class _Room(local):
    """Where each thread gets its numbers."""

    def __init__(self) -> None:
        self.numbers = (ctypes.c_double * 4)()


def _compiled() -> Callable[[int, int, ctypes.Array[ctypes.c_double]], None] | None:
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_fused{suffix}")
        if path.exists():
            try:
                function = ctypes.CDLL(str(path)).probe_fused_float32
            except (OSError, AttributeError):  # built for another machine
                continue
            function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
            function.restype = None
            return function
    return None


_function = _compiled()
_room = _Room()
available = _function is not None
"""Whether it was compiled, and is to be used."""


def float32(address: int, size: int) -> Four | None:
    """The moments of ``size`` float32 numbers that lie side by side at ``address``.

    None where float32 does not hold the answer: with NaN or Inf among the numbers, with squares or sums beyond its
    range, and where it is not compiled.
    """
    if not available or _function is None:
        return None
    numbers = _room.numbers
    _function(address, size, numbers)
    low, high, total, squares = numbers
    fits = SQUARES_TOO_SMALL * size < squares < math.inf and math.isfinite(total)
    return (low, high, total, squares) if fits or low == high == squares == 0.0 else None
