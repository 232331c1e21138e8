"""Arrays of an answer as bytes: a JSON header, then little-endian numbers, each aligned to the size of its items.

A server sends them as they are. In a page without one they are compressed text, and their numbers have as many digits
as are shown: bytes of equal weight stand together, and bits beyond the digits are 0, which compresses better.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNED = 8
"""Bytes; the arrays begin at a multiple of them, and those of 8 bytes an item come first."""
FEW, MANY = 6, 9
"""Digits that files have, and digits that are kept if files have more."""
LEAST, MOST = 1e-37, 1e38
"""Magnitudes that numbers of 4 bytes have."""

Array = npt.NDArray[Any]


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
    bodies = [_planes(array) if planes else array for _, array in parts]
    return b"".join([len(text).to_bytes(4, "little"), text, *(body.tobytes() for body in bodies)])


def _planes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8).reshape(-1, array.itemsize).T


def packed_text(data: str | bytes) -> str:
    """Compress ``data``, in base 64."""
    octets = data.encode("utf-8") if isinstance(data, str) else data
    return base64.b64encode(zlib.compress(octets, 9)).decode("ascii")


def embedded(arrays: Mapping[str, Array], digits: Mapping[str, int | None] = {}) -> str:
    """Return arrays as a page without a server has them.

    Args:
        digits: digits of the numbers of some arrays; None: as many as they have, between ``FEW`` and ``MANY``.
    """
    exact = {name: _digits(arrays[name]) if number is None else number for name, number in digits.items()}
    short = {name: shortened(array, exact[name]) if name in exact else array for name, array in arrays.items()}
    header = {"digits": exact, "planes": True}
    return packed_text(packed(header, short.items(), planes=True))


def _digits(values: Array) -> int:
    """Digits that ``values`` have, ``FEW`` or ``MANY``."""
    sizes = _sizes(values)
    if not _is_short(sizes):
        return MANY
    scaled = sizes * 10.0 ** (FEW - 1 - np.floor(np.log10(sizes)))
    return FEW if np.all(np.abs(scaled - np.rint(scaled)) < 1e-8) else MANY


def _sizes(values: Array) -> Array:
    sizes = np.abs(values[np.isfinite(values)])
    return sizes[sizes > 0]


def _is_short(sizes: Array) -> bool:
    """Return whether numbers of 4 bytes have these magnitudes."""
    return not len(sizes) or bool(sizes.min() >= LEAST and sizes.max() <= MOST)


def shortened(values: Array, digits: int) -> Array:
    """Return numbers of 4 bytes (of 8 if they need them) that have the same first ``digits`` digits, with bits of 0 at
    their ends.

    Decimal digits survive in as many binary ones as distinguish twice as many numbers (Goldberg 1991, *What every
    computer scientist should know about floating-point arithmetic*, theorem 15).
    """
    bits = math.ceil(digits * math.log2(10)) + 1
    kind, whole, held = ("<f4", "<u4", 24) if bits <= 24 and _is_short(_sizes(values)) else ("<f8", "<u8", 53)
    octets = values.astype(kind).view(whole)
    drop = np.array(held - bits, whole)
    nearest = (octets + (np.array(1, whole) << drop >> np.array(1, whole))) >> drop << drop
    is_normal = np.isfinite(values) & (np.abs(values) >= np.finfo(kind).tiny)
    result: Array = np.where(is_normal, nearest, octets).astype(whole).view(kind)
    return result
