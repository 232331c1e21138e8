"""Current series of one rank, of which there is a limited number."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.messages import encodable
from probe.core.moments import OPS
from probe.core.naming import PHASE, RUN, SKIPPED_UPDATE, row_name
from probe.core.output.metrics.catalogue import (
    DROPPED,
    FACTORS,
    FAULTS,
    FINDINGS,
    LAST_STEP,
    NUMBER,
    NUMBERS,
    OVERHEAD,
    PHASE_SECONDS,
    SKIPPED,
    STEP,
    STEPS,
    TENSORS,
    Series,
)
from probe.core.records import Array, Batch, Key, Snapshot

MOST_NUMBERS = 40
"""Most numbers that the program logs under names of its own, and most phases, that have a series each."""
LONGEST_LABEL = 200
"""Characters of a label at most."""
CHOOSE_SECONDS = 60.0
"""Shortest time between two choices of the layers with the largest change: each ends series and begins others."""
WEIGHT = 0.1
"""Weight of a new reading in the usual value of a series."""
UNNAMED = "other"
"""Signal of collectives, whose rows are named by places in the program's source: those are no layers."""
VALUE = "value"

Bools = npt.NDArray[np.bool_]


class Counts(NamedTuple):
    """Counts of the monitor itself."""

    findings: Mapping[str, int]
    """By rule; rules without findings are there too, since the first one would not count as an increase otherwise."""
    faults: int


class LayerColumn:
    """One op of the layers of one signal.

    Args:
        chosen: patterns of names; empty: all.
    """

    def __init__(self, signal: str, op: str, keys: tuple[Key, ...], patterns: Sequence[str]) -> None:
        self.keys = keys
        names = [row_name(key) for key in keys]
        places = {name: place for place, name in enumerate(dict.fromkeys(names))}
        self._row_of = np.fromiter((places[name] for name in names), np.intp, len(names))
        self.layers = tuple(places)
        """Names of the layers, in their order."""
        self.series = tuple(Series(TENSORS[op].name, (signal, label(name))) for name in places)
        matches = (not patterns or any(fnmatchcase(name, pattern) for pattern in patterns) for name in places)
        self.matches: Bools = np.fromiter(matches, np.bool_, len(places))
        self.values: Array = np.zeros(len(places))
        self._usual: Array = np.full(len(places), np.nan)
        self.change: Array = np.zeros(len(places))

    def take(self, rows: Array) -> None:
        """Set the values from ``rows``, of several of one layer the largest in magnitude, and how far each is from its
        usual one, as the absolute logarithm of their ratio; infinite for one that is not finite."""
        magnitudes = np.where(np.isnan(rows), np.inf, np.abs(rows))
        order = np.argsort(magnitudes, kind="stable")  # the last assignment to a place counts
        self.values[self._row_of[order]] = rows[order]
        with np.errstate(divide="ignore", invalid="ignore"):
            sizes = np.log(np.abs(self.values))
        sound = np.isfinite(sizes)
        has_usual = np.isfinite(self._usual)
        self.change = np.where(sound & has_usual, np.abs(sizes - np.where(has_usual, self._usual, 0.0)), 0.0)
        self.change[~np.isfinite(self.values)] = np.inf
        self._usual = np.where(
            sound, np.where(has_usual, self._usual + WEIGHT * (sizes - self._usual), sizes), self._usual
        )


class MetricBoard:
    """Current series of one rank. Two threads write it; any thread reads it.

    Args:
        most: most series.
        chosen: patterns of the names of layers; empty: if there are too many, those with the largest change.
    """

    def __init__(self, most: int, patterns: Sequence[str]) -> None:
        self._most, self._patterns = most, tuple(patterns)
        self._numbers: dict[Series, float] = {}
        self._named: dict[str, Series] = {}
        self._columns: dict[tuple[str, str], LayerColumn] = {}
        self._shown: list[tuple[LayerColumn, Bools]] = []
        self._chosen_at = -math.inf
        self._left_out = 0
        self._overflow: set[str] = set()
        """Names of numbers for which there is no room."""
        self._lock = threading.Lock()

    def take(self, snapshot: Snapshot) -> None:
        """Take the numbers of the run, or of tensors, from ``snapshot``."""
        with self._lock:
            for batch in snapshot.batches:
                if batch.signal == RUN:
                    self._take_run(snapshot, batch)
                elif batch.signal != UNNAMED:
                    self._take_tensors(snapshot.ops, batch)
            if OVERHEAD_SCALAR in snapshot.scalars:
                self._numbers[Series(OVERHEAD.name)] = snapshot.scalars[OVERHEAD_SCALAR]
                self._choose(snapshot.time)

    def series(self, counts: Counts) -> tuple[list[Series], Array]:
        """Return the series and their values."""
        with self._lock:
            numbers = dict(self._numbers)
            for rule, number in counts.findings.items():
                numbers[Series(FINDINGS.name, (rule,))] = number
            numbers[Series(FAULTS.name)] = counts.faults
            numbers[Series(DROPPED.name)] = self._left_out + len(self._overflow)
            tensors = [(column.series[place], column.values[place]) for column, place in self._places()]
        room = max(0, self._most - len(numbers))
        if len(tensors) > room:  # numbers of the run have come since the layers were chosen
            numbers[Series(DROPPED.name)] += len(tensors) - room
        pairs = [*numbers.items(), *tensors[:room]]
        return [series for series, _ in pairs], np.array([value for _, value in pairs], np.float64)

    def _places(self) -> list[tuple[LayerColumn, int]]:
        return [(column, int(place)) for column, is_shown in self._shown for place in np.flatnonzero(is_shown)]

    def _take_run(self, snapshot: Snapshot, batch: Batch) -> None:
        numbers = self._numbers
        if snapshot.step > numbers.get(Series(STEP.name), -1):
            numbers[Series(STEP.name)] = snapshot.step
            numbers[Series(LAST_STEP.name)] = snapshot.time
            numbers[Series(STEPS.name)] = numbers.get(Series(STEPS.name), 0.0) + 1
        for key, value in zip(batch.keys, batch.columns[VALUE].tolist(), strict=True):
            if key.name == SKIPPED_UPDATE:
                numbers[Series(SKIPPED.name)] = numbers.get(Series(SKIPPED.name), 0.0) + value
            elif (series := self._series_of(key.name)) is not None:
                is_phase = series.metric == PHASE_SECONDS.name
                before = numbers.get(series, 0.0) if is_phase else 0.0
                numbers[series] = before + value * FACTORS.get(key.name, 1.0)

    def _series_of(self, name: str) -> Series | None:
        """Return the series of a number of the run; None if there is no room for it."""
        series = self._named.get(name)
        if series is None and name in NUMBERS:
            series = Series(NUMBERS[name].name)
        elif series is None and len(self._named) < MOST_NUMBERS + len(NUMBERS):
            phase = name.removeprefix(PHASE).removesuffix("_seconds") if name.startswith(PHASE) else None
            series = Series(NUMBER.name if phase is None else PHASE_SECONDS.name, (label(phase or name),))
        if series is None:
            if len(self._overflow) < MOST_NUMBERS:
                self._overflow.add(name)
            return None
        self._named[name] = series
        return series

    def _take_tensors(self, ops: Sequence[str], batch: Batch) -> None:
        for op in ops:
            if op not in OPS:
                continue
            try:
                rows = np.asarray(batch.op(op), np.float64)
            except KeyError:  # a signal whose columns are no moments
                continue
            column = self._columns.get((batch.signal, op))
            if column is None or column.keys != batch.keys:
                column = self._columns[batch.signal, op] = LayerColumn(batch.signal, op, batch.keys, self._patterns)
                self._chosen_at = -math.inf
            column.take(rows)

    def _choose(self, now: float) -> None:
        """Choose the layers that are shown: all if there is room, else those with the largest change, and at once those
        that are not finite."""
        columns = list(self._columns.values())
        changes = np.concatenate([np.where(column.matches, column.change, -1.0) for column in columns] or [np.zeros(0)])
        are_shown = np.concatenate([self._is_shown(column) for column in columns] or [np.zeros(0, np.bool_)])
        bad = np.isinf(changes)
        if now - self._chosen_at < CHOOSE_SECONDS and not (bad & ~are_shown).any():
            return
        self._chosen_at = now
        number = int((changes >= 0).sum())
        room = max(0, self._most - len(self._numbers) - RESERVED)
        best = changes >= 0
        if number > room:
            best = np.zeros(len(changes), np.bool_)
            best[np.argsort(-changes, kind="stable")[:room]] = True
        self._left_out = number - int(best.sum())
        ends = np.cumsum([len(column.series) for column in columns])
        self._shown = list(zip(columns, np.split(best, ends[:-1]), strict=True)) if columns else []

    def _is_shown(self, column: LayerColumn) -> Bools:
        for other_column, is_shown in self._shown:
            if other_column is column:
                return is_shown
        return np.zeros(len(column.series), np.bool_)


OVERHEAD_SCALAR = "probe/overhead"
"""Scalar of a snapshot of tensors: the overhead so far."""
RESERVED = 24
"""Series that are kept free for findings by rule, faults and numbers that come later."""


def label(text: str) -> str:
    """Return ``text`` as the value of a label: bounded, and fit to be encoded."""
    text = encodable(text)
    return text if len(text) <= LONGEST_LABEL else f"{text[: LONGEST_LABEL // 2]}...{text[-LONGEST_LABEL // 2 + 3 :]}"
