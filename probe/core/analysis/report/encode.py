"""Compact text for arrays of numbers, which ``cells.js`` reads back digit by digit.

A number is a whole ``mantissa`` times ten to the power of an ``exponent``, as decimal digits were written into the
files: six digits come back as the same six digits. Bytes of equal weight stand together, which compresses better.
"""

from __future__ import annotations

import base64
import zlib

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Packed = dict[str, object]

MISSING, NAN, INF, MINUS_INF = range(4)
"""Mantissas of values that are no numbers, whose exponent is ``SPECIAL``."""
SPECIAL = 32767
FEW, MANY = 6, 9
"""Digits that files have, and digits that are kept if files have more."""


def packed_array(values: npt.ArrayLike) -> Packed:
    """Pack whole numbers of at most 32 bits: type and compressed bytes in base 64; the type alone if all are zero."""
    array = np.asarray(values)
    if not array.any():
        return {"type": 0}
    low, high = int(array.min()), int(array.max())
    size = next(size for size in (1, 2, 4) if -(1 << (8 * size - 1)) <= low and high < 1 << (8 * size - 1))
    octets = array.astype(f"<i{size}").view(np.uint8).reshape(-1, size).T
    return {"type": size, "bytes": base64.b64encode(zlib.compress(octets.tobytes(), 6)).decode("ascii")}


def packed_numbers(values: Array, missing: npt.NDArray[np.bool_], digits: int | None = None) -> Packed:
    """Pack ``values`` with ``digits`` digits; if None, with as many as they have, between ``FEW`` and ``MANY``."""
    if digits is None:
        mantissa, exponent = decimals(values, FEW)
        digits = FEW if _same(values, mantissa, exponent) else MANY
    mantissa, exponent = decimals(values, digits)
    for code, where in (
        (NAN, np.isnan(values)),
        (INF, np.isposinf(values)),
        (MINUS_INF, np.isneginf(values)),
        (MISSING, missing),
    ):
        mantissa[where], exponent[where] = code, SPECIAL
    return {"digits": digits, "mantissa": packed_array(mantissa), "exponent": packed_array(exponent)}


def decimals(values: Array, digits: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Split ``values`` into mantissas of ``digits`` digits and exponents to 10; both are 0 where there is no number."""
    usable = np.isfinite(values) & (values != 0)
    safe = np.where(usable, values, 1.0)
    exponent = np.floor(np.log10(np.abs(safe))).astype(np.int64) - (digits - 1)
    half = -exponent // 2  # ten to the whole power may be out of range
    mantissa = np.rint(safe * 10.0**half * 10.0 ** (-exponent - half)).astype(np.int64)
    over = np.abs(mantissa) >= 10**digits
    mantissa[over] //= 10
    exponent[over] += 1
    return np.where(usable, mantissa, 0), np.where(usable, exponent, 0)


def _same(values: Array, mantissa: npt.NDArray[np.int64], exponent: npt.NDArray[np.int64]) -> bool:
    half = exponent // 2
    with np.errstate(invalid="ignore"):
        back = mantissa * 10.0**half * 10.0 ** (exponent - half)
        return bool(np.all((np.abs(back - values) <= 1e-13 * np.abs(values)) | ~np.isfinite(values)))
