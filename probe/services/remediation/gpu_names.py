"""One name for a GPU of this machine: alerts name it by its index or by its UUID."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

FOLDER = Path("/proc/driver/nvidia/gpus")
"""Folder with one of each GPU, named by its place on the bus.

https://download.nvidia.com/XFree86/Linux-x86_64/535.113.01/README/procinterface.html
"""
_UUID = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-f-]{36})$", re.MULTILINE)
_EXCLUDED = re.compile(r"^GPU Excluded:\s*Yes$", re.MULTILINE)


def gpu_uuid(name: str) -> str:
    """Return the UUID of the GPU with the index or UUID ``name``; ``name`` itself if this machine has no such GPU.

    nvidia-smi counts the GPUs that the driver uses in the order of their places on the bus.
    """
    uuids = _uuids() if name.isdecimal() else []
    return next(iter(uuids[int(name) :]), "") or name if uuids else name


def _uuids() -> list[str]:
    """Return the UUIDs of the GPUs by index."""
    texts = []
    with suppress(OSError):
        texts = [(folder / "information").read_text("utf-8") for folder in sorted(FOLDER.iterdir())]
    return [match[1] if (match := _UUID.search(text)) else "" for text in texts if not _EXCLUDED.search(text)]
