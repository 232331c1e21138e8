"""Text that the demonstration trains on: the source of Python's own standard library."""

from __future__ import annotations

import sysconfig
from pathlib import Path

LIMIT = 2_000_000
"""Most bytes to read."""


def standard_library(limit: int = LIMIT) -> bytes:
    """Source of the top-level modules of the standard library, one after the other by name; at most ``limit`` bytes.

    Raises:
        FileNotFoundError: if this Python comes without its sources.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    text = b""
    for path in sorted(folder.glob("*.py")):
        text += path.read_bytes()
        if len(text) >= limit:
            break
    if not text:
        raise FileNotFoundError(f"{folder}: no source files (*.py) of the standard library to train on")
    return text[:limit]
