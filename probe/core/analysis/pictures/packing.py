"""Arrays of an answer as bytes: a JSON header, then little-endian numbers, each aligned to the size of its items.

A server sends them as they are. In a page without one they are compressed text: bytes of equal weight stand together,
and a number is a whole mantissa and an exponent of ten, as its decimal digits were written into the files, which
compresses better. ``binary.js`` reads six digits back as the same six digits.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from probe.core.analysis.pictures.cells import Array

ALIGNED = 8
"""Bytes; the arrays begin at a multiple of them, and those of 8 bytes an item come first."""
FEW, MANY = 6, 9
"""Digits that files have, and digits that are kept if files have more."""
SPECIAL = 32767
"""Exponent of what is no number, whose mantissa is its place in ``SPECIALS``."""
SPECIALS = (np.nan, np.inf, -np.inf)


def packed(header: Mapping[str, Any], arrays: Iterable[tuple[str, Any]], planes: bool = False) -> bytes:
    """Return the length of the header (4 bytes), the header with names, types and lengths of ``arrays``, and their
    bytes.

    Args:
        planes: first the lowest byte of all numbers of an array, then the next one, and so on.
    """
    parts = [(name, np.ascontiguousarray(array)) for name, array in arrays]
    parts.sort(key=lambda part: -part[1].itemsize)
    named = [[name, array.dtype.name, array.size] for name, array in parts]
    text = json.dumps({**header, "arrays": named}, separators=(",", ":"), allow_nan=False).encode()
    text += b" " * (-(4 + len(text)) % ALIGNED)
    bodies = [array.reshape(-1).view(np.uint8).reshape(-1, array.itemsize).T if planes else array for _, array in parts]
    return b"".join([len(text).to_bytes(4, "little"), text, *(body.tobytes() for body in bodies)])


def packed_text(data: str | bytes) -> str:
    """Compress ``data``, in base 64."""
    octets = data.encode("utf-8") if isinstance(data, str) else data
    return base64.b64encode(zlib.compress(octets, 9)).decode("ascii")


def embedded(arrays: Mapping[str, Array], digits: Mapping[str, int | None] = {}) -> str:
    """Return arrays as a page without a server has them.

    Args:
        digits: digits of the numbers of some arrays; None: as many as they have, ``FEW`` or ``MANY``.
    """
    return packed_text(packed({"planes": 1}, _split(arrays, digits), planes=True))


def _split(arrays: Mapping[str, Array], digits: Mapping[str, int | None]) -> Iterator[tuple[str, Array]]:
    """Yield arrays: of those with digits the mantissas, and the exponents after a name that ends with ``^``."""
    for name, array in arrays.items():
        if name not in digits:
            yield name, array
            continue
        mantissa, exponent = decimals(array, digits[name] or FEW)
        if digits[name] is None and not _same(array, mantissa, exponent):
            mantissa, exponent = decimals(array, MANY)
        for code, where in enumerate((np.isnan(array), np.isposinf(array), np.isneginf(array))):
            mantissa[where], exponent[where] = code, SPECIAL
        yield name, mantissa.astype("<i4")
        yield f"{name}^", exponent.astype("<i2")


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
