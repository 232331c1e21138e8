"""Curves for TensorBoard, encoded by whole steps: an event is one template with its numbers filled in.

The messages are those of TensorFlow's event.proto and summary.proto, in the encoding of Protocol Buffers.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import IO, NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.storage.event_file import VERSION, record
from probe.core.storage.metric_rows import MetricRows, MetricTarget


class _Template(NamedTuple):
    """The summary of a step, ready to be filled in."""

    about: tuple[object, ...]
    """The parts from which the summary follows; while they stay the same, so does the template."""
    summary: npt.NDArray[np.uint8]
    places: npt.NDArray[np.int64]
    """Positions of the four bytes of each number in the summary."""


class CurveFile:
    """One event file, with the first event that TensorBoard looks for.

    Args:
        file: file opened for writing bytes; the caller closes it.
        time: time of the first event, in seconds since the epoch.
    """

    def __init__(self, file: IO[bytes], time: float) -> None:
        self._file = file
        self._template: _Template | None = None
        version = VERSION.encode()
        file.write(record(struct.pack("<Bd", 0x09, time) + b"\x1a" + _varint(len(version)) + version))

    def add(self, step: int, time: float, rows: MetricRows) -> None:
        """Write the numbers of ``rows``, which are of one step; events hold float32, so larger numbers become infinite.

        If a target comes twice, the later row is taken.
        """
        if not rows.values:
            return
        table = np.stack([np.asarray(column) for column in rows.values.values()], axis=1)
        there = np.stack([_there(column) for column in rows.values.values()], axis=1)
        last = _last_of_each(rows.target)
        if last is not None:
            there[~last] = False
        about = (tuple(rows.targets), rows.target.tobytes(), rows.micro_stepped, tuple(rows.values), there.tobytes())
        if self._template is None or self._template.about != about:
            self._template = _template(about, _tags(rows, there))
        with np.errstate(over="ignore"):
            numbers = table[there].astype("<f4")
        self._template.summary[self._template.places] = numbers.view(np.uint8).reshape(-1, 4)
        summary = self._template.summary.tobytes()
        head = struct.pack("<Bd", 0x09, time) + b"\x10" + _varint(step) + b"\x2a" + _varint(len(summary))
        self._file.write(record(head + summary))


def curve_name(target: MetricTarget, micro_stepped: bool) -> str:
    """Return the tag of a row without its op: ``vp0:fc.input:micro1``."""
    micro = f":micro{target.micro_step}" if micro_stepped else ""
    return f"vp{target.stage}:{target.name}{micro}"


def _there(column: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return the mask of the values that are not missing."""
    mask = getattr(column, "mask", None)
    return np.ones(len(column), dtype=bool) if mask is None else ~np.broadcast_to(mask, len(column))


def _tags(rows: MetricRows, there: npt.NDArray[np.bool_]) -> list[str]:
    names = [curve_name(target, rows.micro_stepped) for target in rows.targets]
    ops = list(rows.values)
    lines = zip(rows.target.tolist(), there.tolist(), strict=True)
    return [f"{names[target]}/{op}" for target, kept in lines for op, is_kept in zip(ops, kept, strict=True) if is_kept]


def _last_of_each(target: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_] | None:
    """Return the mask of the last row of each target; None if no target comes twice."""
    _, places = np.unique(target[::-1], return_index=True)
    if len(places) == len(target):
        return None
    taken = np.zeros(len(target), dtype=bool)
    taken[len(target) - 1 - places] = True
    return taken


def _template(about: tuple[object, ...], tags: Sequence[str]) -> _Template:
    parts, places, size = [], np.zeros(len(tags), dtype=np.int64), 0
    for number, tag in enumerate(tags):
        text = tag.encode("utf-8", "backslashreplace")
        value = b"\x0a" + _varint(len(text)) + text + b"\x15" + bytes(4)
        parts.append(b"\x0a" + _varint(len(value)) + value)
        size += len(parts[-1])
        places[number] = size - 4
    summary = np.frombuffer(bytearray(b"".join(parts)), dtype=np.uint8)
    return _Template(about, summary, places[:, None] + np.arange(4))


def _varint(number: int) -> bytes:
    """Encode ``number``, which is not negative, as Protocol Buffers encode whole numbers."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
