"""Event files for TensorBoard: their names, and the frame around each event (the TFRecord format).

The frame needs CRC-32C (Castagnoli, RFC 3720 appendix B.4), here in NumPy: half a megabyte in a millisecond, where a
loop takes fifty.
"""

from __future__ import annotations

import os
import socket
import struct
from itertools import count
from pathlib import Path
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from probe.core.storage.run_directory import rank_folder

VERSION = "brain.Event:2"
"""The text of the first event of every file."""

_NUMBERS = count()
_PREFIX = "events.out.tfevents."


def file_name(time: float) -> str:
    """Return a name that no other file has; TensorBoard reads the files of a directory in the order of their names, so
    that numbers within a second have the same length.

    Args:
        time: time of the first event, in seconds since the epoch.
    """
    return f"{_PREFIX}{int(time):010d}.{socket.gethostname()}.{os.getpid()}.{next(_NUMBERS):06d}"


def is_event_file(name: str) -> bool:
    """Return whether TensorBoard reads a file of this name, whichever tool wrote it."""
    return "tfevents" in name


def curves_folder(root: Path, rank: int, signal: str) -> Path:
    """Return the folder of the event files of a rank and signal."""
    return root / rank_folder(rank) / quote(signal, safe="")


def record(data: bytes) -> bytes:
    """Return ``data`` framed as a TFRecord: length, its checksum, data, its checksum."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked(length)) + data + struct.pack("<I", masked(data))


Words = npt.NDArray[np.uint32]

_ALL = 0xFFFFFFFF


def _one_byte() -> Words:
    """Return the remainder of every single byte."""
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = (values >> 1) ^ np.where(values & 1, np.uint32(0x82F63B78), np.uint32(0))
    return values


def _followed(tables: Words, words: Words) -> Words:
    """Return the remainders of ``words`` followed by the zero bytes that ``tables`` (4 x 256) append: a linear map."""
    octets = np.ascontiguousarray(words).view(np.uint8).reshape(-1, 4)
    folded: Words = tables[0].take(octets[:, 0])
    for position in (1, 2, 3):
        folded ^= tables[position].take(octets[:, position])
    return folded


def _zeros() -> list[Words]:
    """Return, for each n < 32, the tables that append 2**n zero bytes."""
    words = np.arange(256, dtype=np.uint32) << np.array([[0], [8], [16], [24]], dtype=np.uint32)
    levels = [_one_byte()[words & 255] ^ (words >> 8)]
    while len(levels) < 32:
        levels.append(_followed(levels[-1], levels[-1]).reshape(4, 256))
    return levels


_ZEROS = _zeros()
_PAIRS = np.arange(1 << 16, dtype=np.uint32)
_LOW = _followed(_ZEROS[0], _one_byte()[_PAIRS & 255]) ^ _one_byte()[_PAIRS >> 8]
"""Remainder of every two bytes."""
_HIGH = _followed(_ZEROS[1], _LOW)
"""Remainder of every two bytes followed by two zero bytes."""


def crc32c(data: bytes) -> int:
    """Return the checksum of ``data``, which has at least four bytes.

    Remainders of neighbouring pieces are merged, all pieces at once, until one is left. Zero bytes in front do not
    change a remainder, so the message is padded there.
    """
    assert len(data) >= 4, "the register's initial ones are folded into the first four bytes"
    padding = -len(data) % 4
    octets = np.zeros(padding + len(data), dtype=np.uint8)
    octets[padding:] = np.frombuffer(data, dtype=np.uint8)
    octets[padding : padding + 4] ^= 0xFF
    pairs = octets.view("<u2").reshape(-1, 2)
    words: Words = _HIGH.take(pairs[:, 0]) ^ _LOW.take(pairs[:, 1])
    for zeros in _ZEROS[2:]:
        if len(words) == 1:
            break
        if len(words) % 2:
            words = np.concatenate([np.zeros(1, dtype=np.uint32), words])
        words = _followed(zeros, words[0::2]) ^ words[1::2]
    return int(words[0]) ^ _ALL


def masked(data: bytes) -> int:
    """Return the checksum as TFRecord files store it: rotated and shifted, against weak checksums of checksums."""
    checksum = crc32c(data)
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & _ALL
