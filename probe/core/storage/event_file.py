"""Event files as TensorBoard reads them: their names, and the frame around each event (the TFRecord format)."""

from __future__ import annotations

import os
import socket
import struct
from itertools import count

from probe.core.storage.crc32c import masked

VERSION = "brain.Event:2"
"""What the first event of every file says."""

_NUMBERS = count()


def file_name(time: float) -> str:
    """A name that no other file has; TensorBoard reads those of a directory in their order.

    Args:
        time: seconds since the epoch, of the beginning of what the file holds.
    """
    return f"events.out.tfevents.{int(time):010d}.{socket.gethostname()}.{os.getpid()}.{next(_NUMBERS)}"


def record(data: bytes) -> bytes:
    """``data`` framed as a TFRecord: length, its checksum, data, its checksum."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked(length)) + data + struct.pack("<I", masked(data))
