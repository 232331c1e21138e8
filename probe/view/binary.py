"""Binary answers: a JSON header, then arrays of little-endian numbers, each aligned to the size of its items."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

ALIGNED = 8
"""Bytes; the arrays begin at a multiple of them, and those of 8 bytes an item come first."""


def packed(header: Mapping[str, Any], arrays: Iterable[tuple[str, Any]]) -> bytes:
    """Return the length of the header (4 bytes), the header with the names and types of ``arrays``, and their bytes."""
    parts = [(name, np.ascontiguousarray(array)) for name, array in arrays]
    assert [part.itemsize for _, part in parts] == sorted((part.itemsize for _, part in parts), reverse=True)
    named = [[name, array.dtype.name] for name, array in parts]
    text = json.dumps({**header, "arrays": named}, separators=(",", ":"), allow_nan=False).encode()
    text += b" " * (-(4 + len(text)) % ALIGNED)
    return b"".join([len(text).to_bytes(4, "little"), text, *(array.tobytes() for _, array in parts)])
