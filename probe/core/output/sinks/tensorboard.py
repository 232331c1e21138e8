"""Curves for TensorBoard: one event file a rank, one event a signal and step."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.errors import missing
from probe.core.histogram import buckets
from probe.core.naming import tag
from probe.core.output.sinks.context import SinkContext
from probe.core.records import Batch, Snapshot
from probe.core.storage.event_file import VERSION, file_name, record
from probe.core.storage.files import append, open_for_append
from probe.core.storage.layout import histograms_of, ops_of

Event = Any
RUN_FOLDER = "run"
"""Folder of the event file with numbers of the run: TensorBoard follows one growing file in a folder."""


class _Curves(NamedTuple):
    """The text of the scalars of a signal as an event has it, kept from step to step: only its values change."""

    about: tuple[object, ...]
    text: npt.NDArray[np.uint8]
    places: npt.NDArray[np.int64]
    """Places of the four bytes of each value, a row each."""


class TensorBoardSink:
    """Writer of scalars, and of histograms if configured, at their step; events hold float32, so larger numbers become
    infinite.

    An event holds all values of a signal, because an event for each value costs more than measuring it.

    Raises:
        ImportError: if tensorboardX is missing.
    """

    def __init__(self, context: SinkContext) -> None:
        try:
            from tensorboardX.proto.event_pb2 import Event as NewEvent
        except ImportError as absent:
            raise ImportError(missing('format "tensorboard"', "tensorboardX", "tensorboard")) from absent
        self._new_event = NewEvent
        self._rank, self._resumed_at = context.rank, context.resumed_at
        folder = context.directory / RUN_FOLDER if context.run_numbers else context.directory
        self._path = folder / file_name(time.time())
        self._curves: dict[str, _Curves] = {}

    def open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def close(self) -> None:
        """Do nothing: no file is kept open."""

    def write(self, snapshot: Snapshot) -> None:
        """Append the events of one step in one write."""
        batches = [batch for batch in snapshot.batches if len(batch)]
        head = self._new_event(step=snapshot.step, wall_time=snapshot.time).SerializeToString()
        events = [self._measured(batch, ops_of(batch, snapshot.ops)) for batch in batches]
        others = [*(self._distributed(batch, snapshot.ops) for batch in batches), self._run(snapshot)]
        events = [head + text for text in (*events, *(event.SerializeToString() for event in others))]
        with open_for_append(self._path) as file:
            if not file.seek(0, os.SEEK_END):
                events[:0] = (event.SerializeToString() for event in self._beginning(snapshot.time))
            append(file, b"".join(map(record, events)))

    def _beginning(self, time: float) -> Iterator[Event]:
        """Yield the first events of a file; the second makes readers drop steps of other files from this step on."""
        yield self._new_event(wall_time=time, file_version=VERSION)
        if self._resumed_at is not None:
            event = self._new_event(wall_time=time, step=self._resumed_at)
            event.session_log.status = event.session_log.START
            yield event

    def _measured(self, batch: Batch, ops: tuple[str, ...]) -> bytes:
        """Return the scalars of ``batch``, op by op, as the text of an event without step and time."""
        form = (batch.keys, ops, batch.micro_stepped)
        curves = self._curves.get(batch.signal)
        if curves is None or curves.about != form:
            tags = [tag(batch.signal, key, self._rank, batch.micro_stepped) for key in batch.keys]
            event = self._event((f"{name}_{op}", 0.0) for op in ops for name in tags)
            text = np.frombuffer(event.SerializeToString(), np.uint8).copy()
            curves = self._curves[batch.signal] = _Curves(form, text, _places(event, len(text)))
        with np.errstate(over="ignore"):
            values = np.array([batch.op(op) for op in ops]).astype("<f4")
        curves.text[curves.places] = values.view(np.uint8).reshape(-1, 4)
        return curves.text.tobytes()

    def _distributed(self, batch: Batch, ops: Sequence[str]) -> Event:
        """Return the event of the histograms of ``batch``, each under the tag of its row, without an op."""
        event, histograms = self._new_event(), histograms_of(batch, ops)
        if histograms is not None:
            for key, row in zip(batch.keys, histograms, strict=True):
                event.summary.value.add(tag=tag(batch.signal, key, self._rank, batch.micro_stepped), histo=buckets(row))
        return event

    def _run(self, snapshot: Snapshot) -> Event:
        """Return the event of the scalars of a step."""
        cost = ((f"probe/rank{self._rank}/{name}_seconds", value) for name, value in snapshot.cost.items())
        return self._event([*((f"{n}/rank{self._rank}", value) for n, value in snapshot.scalars.items()), *cost])

    def _event(self, scalars: Iterable[tuple[str, float]]) -> Event:
        event = self._new_event()
        for name, value in scalars:
            event.summary.value.add(tag=name, simple_value=value)
        return event


def _places(event: Event, length: int) -> npt.NDArray[np.int64]:
    """Return the places of the values in the text of an event of scalars: each is at the end of its message, behind the
    tag; before the message is its length, in seven bits a byte."""
    sizes = np.array([scalar.ByteSize() for scalar in event.summary.value], dtype=np.int64)
    ends = np.cumsum(1 + np.ceil(np.log2(sizes + 1) / 7).astype(np.int64) + sizes)
    begin = length - (ends[-1] if len(ends) else 0)
    places: npt.NDArray[np.int64] = (begin + ends)[:, np.newaxis] + np.arange(-4, 0)
    return places
