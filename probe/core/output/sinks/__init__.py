"""Where snapshots go. To add a writer or an alert channel, write one file here and add one line to ``SINKS``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from probe.core.output.sinks.context import SinkContext
from probe.core.records import Snapshot


class Sink(Protocol):
    """Takes snapshots, one after the other, on the delivery thread.

    Any method may raise: the caller counts it and goes on, and the next ``write`` must work again if it can.
    """

    def open(self) -> None:
        """Called once, before the first ``write``."""

    def write(self, snapshot: Snapshot) -> None:
        """Returns when whoever reads what this sink writes can see all of ``snapshot``."""

    def close(self) -> None:
        """Called once, after the last ``write``, also when that failed."""


def _csv(context: SinkContext) -> Sink:
    from probe.core.output.sinks.csv import CsvSink

    return CsvSink(context)


def _tensorboard(context: SinkContext) -> Sink:
    from probe.core.output.sinks.tensorboard import TensorBoardSink

    return TensorBoardSink(context)


def _sqlite(context: SinkContext) -> Sink:
    from probe.core.output.sinks.sqlite import SqliteSink

    return SqliteSink(context)


def _parquet(context: SinkContext) -> Sink:
    from probe.core.output.sinks.parquet import ParquetSink

    return ParquetSink(context)


def _cost(context: SinkContext) -> Sink:
    from probe.core.output.sinks.overhead import CostSink

    return CostSink(context)


def _anomaly(context: SinkContext) -> Sink:
    from probe.core.output.sinks.anomaly import AnomalySink

    return AnomalySink(context)


SINKS: dict[str, Callable[[SinkContext], Sink]] = {
    "csv": _csv,
    "tensorboard": _tensorboard,
    "sqlite": _sqlite,
    "parquet": _parquet,
    "cost": _cost,
    "anomaly": _anomaly,
}
"""Every built-in sink. What a sink needs is imported only when it is asked for."""
TABLES = frozenset({"csv", "sqlite", "parquet"})
"""Those that have rows about tensors only: what the monitor costs is written beside them."""
