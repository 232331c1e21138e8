"""Event files of the callbacks: scalars and texts in one file a rank, several at once."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from errno import EACCES
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from probe.core.errors import missing
from probe.core.storage.event_file import VERSION, file_name, record
from probe.core.storage.files import append, open_for_append

FLUSH_SECONDS = 10.0
"""Longest time that a number waits while others follow."""
TEXT_STEP = 1


class Scalar(NamedTuple):
    """Number of a curve."""

    tag: str
    step: int
    value: float
    time: float
    """Seconds since the epoch."""


class EventWriter:
    """Writer of an event file, on any thread. At most ``queue_size`` numbers wait before they are written.

    Neighbouring numbers of one step share an event. The file is made with the first of them.

    Raises:
        ImportError: if tensorboardX is missing.
        OSError: if the folder cannot be made or written to.
    """

    def __init__(self, folder: Path, queue_size: int) -> None:
        try:
            from tensorboardX.proto.event_pb2 import Event
        except ImportError as absent:
            raise ImportError(missing("tensorboard_dir", "tensorboardX", "tensorboard")) from absent
        self.folder, self._queue_size, self._new_event = folder, queue_size, Event
        self._lock, self._waiting, self._process = threading.Lock(), list[Scalar](), os.getpid()
        self._path: Path | None = None
        self._written = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(EACCES, os.strerror(EACCES), str(folder))

    def add(self, scalars: Iterable[Scalar]) -> None:
        """Write ``scalars`` now or, if there is room for them, later."""
        with self._lock:
            self._waiting.extend(scalars)
            if len(self._waiting) > self._queue_size or time.monotonic() - self._written > FLUSH_SECONDS:
                self._write(self._waiting)

    def add_texts(self, texts: Iterable[tuple[str, str]], at: float) -> None:
        """Write texts, each under its tag, at once."""
        event = self._new_event(step=TEXT_STEP, wall_time=at)
        for tag, text in texts:
            value = event.summary.value.add(tag=f"{tag}/text_summary")
            value.metadata.plugin_data.plugin_name = "text"
            value.tensor.dtype = 7  # DT_STRING
            value.tensor.tensor_shape.dim.add(size=1)
            value.tensor.string_val.append(text.encode("utf-8", "backslashreplace"))
        with self._lock:
            self._append([event], at)

    def flush(self) -> None:
        """Write the numbers that wait."""
        with self._lock:
            self._write(self._waiting)

    def _write(self, waiting: list[Scalar]) -> None:
        self._written = time.monotonic()
        try:
            if waiting and os.getpid() == self._process:
                self._append(list(self._events(waiting)), waiting[0].time)
        finally:
            waiting.clear()

    def _events(self, scalars: Iterable[Scalar]) -> Iterator[Any]:
        for (step, at), neighbours in groupby(scalars, lambda each: (each.step, each.time)):
            event = self._new_event(step=step, wall_time=at)
            for each in neighbours:
                event.summary.value.add(tag=each.tag, simple_value=each.value)
            yield event

    def _append(self, events: list[Any], at: float) -> None:
        if self._path is None:
            self._path = self.folder / file_name(at)
            events = [self._new_event(wall_time=at, file_version=VERSION), *events]
        with open_for_append(self._path) as file:
            append(file, b"".join(record(event.SerializeToString()) for event in events))


_writers: weakref.WeakValueDictionary[tuple[int, Path], EventWriter] = weakref.WeakValueDictionary()
"""Writers in use: TensorBoard follows only the latest file of a folder, so a process writes one."""


def event_writer(folder: Path, queue_size: int) -> EventWriter:
    """Return the writer of ``folder``, the same for all callbacks of the process."""
    key = os.getpid(), folder.absolute()
    known = _writers.get(key)
    if known is None:
        known = _writers[key] = EventWriter(key[1], queue_size)
    return known
