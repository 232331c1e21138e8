"""Arrays of an answer as bytes: a JSON header, then little-endian numbers, each aligned to the size of its items.

A server sends them as they are. In a page without one they are compressed text: bytes of equal weight stand together,
and a number of few decimal digits is its place among all numbers of as many digits, as the distance from the place of
the number before it in its line, which is small where a curve is smooth. ``binary.js`` reads the same digits back.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from probe.core.analysis.pictures.cells import Array

ALIGNED = 8
"""Bytes; the arrays begin at a multiple of them, and those of 8 bytes an item come first."""
FEW = 6
"""Digits that files have, as a rule."""
BIAS = 350
"""Added to exponents, which are positive then."""
SPECIALS = (0.0, np.nan, np.inf, -np.inf)
"""Numbers at the places 0 to 3."""
LESS = bytes.maketrans(b"<", b",")
"""Base 85 without the sign that begins a tag."""


def packed(header: Mapping[str, Any], arrays: Iterable[tuple[Any, ...]], planes: bool = False) -> bytes:
    """Return the length of the header (4 bytes), the header with names, types and lengths of ``arrays``, and their
    bytes.

    Args:
        arrays: name, array, and what else the header says of it.
        planes: first the lowest byte of all numbers of an array, then the next one, and so on.
    """
    parts = [(name, np.ascontiguousarray(array), more) for name, array, *more in arrays]
    parts.sort(key=lambda part: -part[1].itemsize)
    named = [[name, array.dtype.name, array.size, *more] for name, array, more in parts]
    text = json.dumps({**header, "arrays": named}, separators=(",", ":"), allow_nan=False).encode()
    text += b" " * (-(4 + len(text)) % ALIGNED)
    bodies = [array.reshape(-1, 1).view(np.uint8).T if planes else array for _, array, _ in parts]
    return b"".join([len(text).to_bytes(4, "little"), text, *(body.tobytes() for body in bodies)])


def packed_text(data: str | bytes) -> str:
    """Compress ``data``, in base 85; ``inflated`` of ``loader.js`` is the inverse."""
    octets = data.encode("utf-8") if isinstance(data, str) else data
    return base64.b85encode(zlib.compress(octets, 9)).translate(LESS).decode("ascii")


def embedded(arrays: Mapping[str, Array], digits: Mapping[str, int | None] = {}) -> str:
    """Return arrays as a page without a server has them.

    Args:
        digits: digits that the numbers of some arrays are rounded to; None for all that they have.
    """
    coded = ((name, *_coded(array, digits.get(name, 0))) for name, array in arrays.items())
    return packed_text(packed({"planes": 1}, coded, planes=True))


def _coded(array: Array, digits: int | None) -> tuple[Any, ...]:
    """An array as it is packed, and for one with digits their number and the length of its lines."""
    if digits == 0:
        return (array,)
    mantissa, exponent = decimals(array, digits or FEW)
    if digits is None and not _same(array, mantissa, exponent):
        return (array,)
    least = 10 ** ((digits or FEW) - 1)
    codes = np.sign(mantissa) * ((exponent + BIAS) * 9 * least + np.abs(mantissa) - least)
    for code, where in enumerate((np.isnan(array), np.isposinf(array), np.isneginf(array)), 1):
        codes[where] = code
    far = codes.reshape(-1, array.shape[-1]).copy()
    far[:, 1:] -= far[:, :-1].copy()
    far[1:, 0] -= far[:-1, 0].copy()  # the first in a line from the first in the line before
    return (far << 1 ^ far >> 63).astype("<u4"), digits or FEW, array.shape[-1]


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
