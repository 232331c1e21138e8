"""Rows of the numbers of the run, in the formats of the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from probe.core.config.schema import Settings
from probe.core.door import attempt
from probe.core.faults import SINK, Faults
from probe.core.naming import RUN, VALUE
from probe.core.output.sinks import KEPT, Sink, factory
from probe.core.output.sinks.context import SinkContext
from probe.core.records import Batch, Key, Snapshot
from probe.core.run_state.rules import RunStep

DTYPE = "float64"
Files = Callable[[], tuple[SinkContext, Sequence[Sink]] | None]


class RunWriter:
    """Sinks of the numbers of the run, made before the first row. A sink that fails is counted, and called again."""

    def __init__(self, settings: Settings, faults: Faults, files: Files | None) -> None:
        self._settings, self._faults, self._files = settings, faults, files
        self._sinks: list[Sink] | None = None
        self._rank = 0
        self._names: tuple[str, ...] = ()
        self._keys: tuple[Key, ...] = ()

    def write(self, step: RunStep) -> None:
        """Write the numbers of ``step``."""
        if self._sinks is None:
            self._sinks = []
            attempt(self._faults, "files of the run's numbers", self._open)
        if self._sinks and step.values:
            snapshot = Snapshot(step.step, self._rank, step.time, (self._batch(step),), (), outcome=step.outcome)
            for sink in self._sinks:
                attempt(self._faults, _place(sink), sink.write, snapshot)

    def close(self) -> None:
        """Close every sink."""
        for sink in self._sinks or ():
            attempt(self._faults, _place(sink), sink.close)
        self._sinks = []

    def _open(self) -> None:
        if self._files is None or not set(self._settings.formats) - {KEPT}:
            return
        files = self._files()
        if files is None:
            raise RuntimeError("the run has ended")
        context, sinks = files
        self._rank = context.rank
        opened = list(sinks)
        for name in self._settings.formats:
            make = factory(name)
            if make is not None:
                sink = make(context)
                sink.open()
                opened.append(sink)
        self._sinks = opened

    def _batch(self, step: RunStep) -> Batch:
        names = tuple(step.values)
        if names != self._names:
            self._names, self._keys = names, tuple(map(Key, names))
        return Batch(
            signal=RUN,
            step=step.step,
            keys=self._keys,
            shapes=((),) * len(names),
            dtypes=(DTYPE,) * len(names),
            order=np.arange(len(names), dtype=np.int64),
            columns={VALUE: np.fromiter(step.values.values(), np.float64, len(names))},
        )


def _place(sink: Sink) -> str:
    """Return the place under which failures of ``sink`` are counted."""
    return f"{SINK}{type(sink).__name__} of the run's numbers"
