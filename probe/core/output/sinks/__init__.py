"""Sinks: writers of snapshots, one a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import Protocol

from probe.core.output.sinks.context import SinkContext
from probe.core.records import Snapshot
from probe.core.trackers import TRACKERS


class Sink(Protocol):
    """Writer of snapshots, one after the other, on the delivery thread.

    Any method may raise: the caller counts it and goes on, and the next ``write`` must work again if it can.
    """

    def open(self) -> None:
        """Prepare for writing; called once, before the first ``write``."""

    def write(self, snapshot: Snapshot) -> None:
        """Write ``snapshot``; when this returns, readers can see all of it."""

    def close(self) -> None:
        """Release all resources; called once, after the last ``write``, also if that failed."""


Factory = Callable[[SinkContext], Sink]


@dataclass(frozen=True)
class BuiltIn:
    """A sink of this package, imported when it is made."""

    path: str
    """Its module and class."""
    rows_only: bool = False
    """True if it has rows about tensors only: the monitor's own cost is then written beside it."""
    format: bool = True
    """True if a configuration names it under ``format``."""
    live: bool = False
    """True if it shows the progress of this rank to another process."""
    numbers: bool = False
    """True if it shows numbers of the run from the first step on, whether or not the program logs any."""

    def __call__(self, context: SinkContext) -> Sink:
        module, _, name = self.path.partition(":")
        made: Sink = getattr(import_module(module), name)(context)
        return made


@dataclass(frozen=True)
class TrackerFormat(BuiltIn):
    """The sink of a tracker of experiments."""

    tracker: str = ""
    """Its name."""

    def __call__(self, context: SinkContext) -> Sink:
        module, _, name = self.path.partition(":")
        made: Sink = getattr(import_module(module), name)(self.tracker, context)
        return made


_TRACKER = "probe.core.output.sinks.tracker:TrackerSink"
SINKS: dict[str, BuiltIn] = {
    "csv": BuiltIn("probe.core.output.sinks.csv:CsvSink", rows_only=True),
    "tensorboard": BuiltIn("probe.core.output.sinks.tensorboard:TensorBoardSink"),
    "sqlite": BuiltIn("probe.core.output.sinks.sqlite:SqliteSink", rows_only=True),
    "parquet": BuiltIn("probe.core.output.sinks.parquet:ParquetSink", rows_only=True),
    "csv_v2": BuiltIn("probe.core.output.sinks.csv_v2:CsvV2Sink", rows_only=True),
    "prometheus": BuiltIn("probe.core.output.sinks.prometheus:PrometheusSink", live=True, numbers=True),
    "otlp": BuiltIn("probe.core.output.sinks.otlp:OtlpSink", live=True, numbers=True),
    **{name: TrackerFormat(_TRACKER, numbers=True, tracker=name) for name in TRACKERS},
    "cost": BuiltIn("probe.core.output.sinks.overhead:CostSink", format=False),
    "anomaly": BuiltIn("probe.core.output.sinks.anomaly:AnomalySink", format=False),
}
"""Every sink of this package. To add one, write a file with its class, and add a line here."""
KEPT = "api"
"""The format that writes nothing: the program reads the numbers from the monitor."""
FORMATS = (*(name for name, sink in SINKS.items() if sink.format), KEPT)
"""The formats of this package."""
GROUP = "probe.sinks"
"""Entry point group in which other packages offer sinks: each a factory, called with a :class:`SinkContext`."""


def offered() -> tuple[str, ...]:
    """Return the formats that other packages offer."""
    return tuple(entry.name for entry in entry_points(group=GROUP))


def factory(name: str) -> Factory | None:
    """Return the factory of the sink called ``name``; None for the format that writes nothing."""
    if name in SINKS:
        return SINKS[name]
    for entry in entry_points(group=GROUP, name=name):
        loaded: Factory = entry.load()
        return loaded
    return None


def is_live(formats: Sequence[str]) -> bool:
    """Return whether one of ``formats`` shows the progress of this rank to another process."""
    return any(getattr(SINKS.get(name), "live", False) for name in formats)


def shows_numbers(formats: Sequence[str]) -> bool:
    """Return whether one of ``formats`` shows numbers of the run from the first step on."""
    return any(getattr(SINKS.get(name), "numbers", False) for name in formats)


def written_beside(formats: Sequence[str]) -> tuple[str, ...]:
    """Return the sinks that are added to those of ``formats``."""
    rows_only = any(getattr(SINKS.get(name), "rows_only", False) for name in formats)
    return ("cost", "anomaly") if rows_only else ("anomaly",)
