"""Series that a tracker gets: numbers of the run, summaries of signals, and a limited number of layers."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np

from probe.core.moments import OPS
from probe.core.naming import RUN, row_name
from probe.core.output.metrics.board import UNNAMED, VALUE, Bools, LayerColumn, label
from probe.core.records import Array, Batch, Key, Snapshot
from probe.core.trackers import TrackedRow

PREFIX = "probe"
"""First part of the name of every series."""
MOST_SERIES = 200
"""Most series of a run."""
MOST_FULL = 5000
"""Most series of a run with ``full``."""
NUMBERS_PART = 4
"""The part of the series that is kept for numbers of the run: one in this many."""
COUNTS = ("nans", "infs")
"""Ops whose sums over layers are in the summary of a signal."""


class OpRows(NamedTuple):
    """Values of an op in the rows that have it."""

    keys: tuple[Key, ...]
    values: Array
    places: Sequence[int]
    """Positions of these rows among all rows of the signal."""


class SignalStep:
    """Rows of one signal in one step, of all ranks that are read."""

    def __init__(self, batches: Sequence[Batch], ranks: Sequence[int]) -> None:
        self._batches, self._ranks = batches, ranks
        self._ops: dict[str, OpRows | None] = {}

    def op(self, name: str) -> OpRows | None:
        """Return the rows that have an op; None if no row has, or if the signal's columns are no moments."""
        if name not in self._ops:
            self._ops[name] = self._read(name)
        return self._ops[name]

    def _read(self, name: str) -> OpRows | None:
        batches = self._batches
        masks = [_has(batch, name) for batch in batches]
        if not any(mask.any() for mask in masks):
            return None
        if len(batches) == 1 and masks[0].all():
            return OpRows(batches[0].keys, np.asarray(batches[0].op(name), np.float64), range(len(batches[0])))
        places = np.flatnonzero(np.concatenate(masks)).tolist()
        keys = [key for batch in batches for key in batch.keys]
        values = [
            np.asarray(batch.op(name), np.float64)[mask]
            for batch, mask in zip(batches, masks, strict=True)
            if mask.any()
        ]
        return OpRows(tuple(keys[place] for place in places), np.concatenate(values), places)

    def place(self, row: int) -> str:
        """Return the layer of a row, with its rank if there are several."""
        for batch, rank in zip(self._batches, self._ranks, strict=True):
            if row < len(batch):
                name = label(row_name(batch.keys[row]))
                return f"{name} (rank {rank})" if len(set(self._ranks)) > 1 else name
            row -= len(batch)
        raise IndexError(row)


def _has(batch: Batch, op: str) -> Bools:
    try:
        return batch.has(op)
    except KeyError:
        return np.zeros(len(batch), np.bool_)


class TrackedSeries:
    """Chooser of the series of a run: a series that is chosen once is kept.

    Two threads write it. Layers that are asked for come first. If not all others fit in, those whose values are
    farthest from their own history are chosen at the 2nd, 4th, 8th, ... step, each time for half of the room that is
    left; a value that is not finite is chosen at once.

    Args:
        most: most series.
        asked: patterns of the names of layers.
    """

    def __init__(self, most: int, asked: Sequence[str]) -> None:
        self._most, self._asked = most, tuple(asked)
        self._numbers: dict[str, str] = {}
        self._summaries: dict[str, None] = {}
        self._columns: dict[tuple[str, str], LayerColumn] = {}
        self._layers: dict[str, None] = {}
        """Names of the series of layers."""
        self._shown: dict[tuple[str, str], tuple[Bools, list[tuple[int, str]]]] = {}
        """By column: its chosen layers, and their places with the names of their series."""
        self._changed = False
        """True if there are columns from which nothing was chosen yet."""
        self._steps = 0
        self._lock = threading.Lock()
        self.worst: dict[str, str] = {}
        """Worst layer by signal: the first that is not finite, else that of the largest norm."""
        self.left_out = 0
        """Number of series for which there is no room."""

    def of_snapshot(self, snapshot: Snapshot) -> TrackedRow:
        """Return the values of ``snapshot``: numbers of the run, or of tensors of one rank."""
        tensors = {batch.signal: SignalStep((batch,), (snapshot.rank,)) for batch in tensors_of(snapshot.batches)}
        numbers = next((batch for batch in snapshot.batches if batch.signal == RUN), None)
        return self.row(snapshot.step, snapshot.time, snapshot.ops, tensors, numbers)

    def row(
        self, step: int, time: float, ops: Sequence[str], tensors: Mapping[str, SignalStep], numbers: Batch | None
    ) -> TrackedRow:
        """Return the values of one step.

        Args:
            ops: ops of the tensors.
            numbers: numbers of the run; None if there are none.
        """
        values: dict[str, float] = {}
        with self._lock:
            if numbers is not None:
                values |= self._of_run(numbers)
            for signal, rows in tensors.items():
                values |= self._summary(signal, rows, ops)
            if tensors:
                self._take(ops, tensors)
                self._choose_if_due()
                values |= self._of_layers(tensors)
        return TrackedRow(step, time, values)

    def _of_run(self, batch: Batch) -> dict[str, float]:
        values = {}
        for key, value in zip(batch.keys, batch.columns[VALUE].tolist(), strict=True):
            name = self._numbers.get(key.name)
            if name is None:
                if len(self._numbers) >= self._most // NUMBERS_PART:
                    continue
                name = self._numbers[key.name] = f"{PREFIX}/{RUN}/{label(key.name)}"
            values[name] = value
        return values

    def _summary(self, signal: str, rows: SignalStep, ops: Sequence[str]) -> dict[str, float]:
        """Return the median and the maximum of the finite norms, NaN if there is none, and counts of NaN and Inf."""
        summary_op = rows.op(next((op for op in ("norm", *ops) if op in OPS and rows.op(op) is not None), "norm"))
        if summary_op is None:
            return {}
        sizes = summary_op.values
        finite = np.isfinite(sizes)
        worst = int(np.argmin(finite) if not finite.all() else np.argmax(np.abs(sizes)))
        self.worst[signal] = rows.place(summary_op.places[worst])
        numbers: dict[str, float] = {}
        if rows.op("norm") is not None:
            finite_sizes = sizes[finite] if finite.any() else np.array([np.nan])
            numbers |= {"norm_median": float(np.median(finite_sizes)), "norm_max": float(finite_sizes.max())}
        numbers |= {"nan_layers": float(np.isnan(sizes).sum()), "inf_layers": float(np.isinf(sizes).sum())}
        for op in COUNTS:
            if op in ops and (counts := rows.op(op)) is not None:
                numbers[op] = float(counts.values.sum())
        return {self._named_summary(signal, name): value for name, value in numbers.items()}

    def _named_summary(self, signal: str, name: str) -> str:
        full = f"{PREFIX}/{signal}/{name}"
        self._summaries[full] = None
        return full

    def _take(self, ops: Sequence[str], tensors: Mapping[str, SignalStep]) -> None:
        self._steps += 1
        for signal, rows in tensors.items():
            for op in ops:
                op_rows = rows.op(op) if op in OPS and op not in COUNTS else None
                if op_rows is None:
                    continue
                column = self._columns.get((signal, op))
                if column is None or column.keys != op_rows.keys:
                    column = self._columns[signal, op] = LayerColumn(signal, op, op_rows.keys, ())
                    self._show(signal, op)
                    self._changed = True
                column.take(op_rows.values)

    def _choose_if_due(self) -> None:
        due = self._steps >= 2 and self._steps & (self._steps - 1) == 0
        bad = any((np.isinf(column.change) & ~self._shown[at][0]).any() for at, column in self._columns.items())
        if due or bad or self._changed:
            self._changed = False
            self._choose(due)

    def _choose(self, due: bool) -> None:
        """Choose further series while there is room.

        Args:
            due: whether those that are far from their history are chosen.
        """
        room = max(0, self._most - self._most // NUMBERS_PART - len(self._summaries) - len(self._layers))
        others = [
            _Candidate(float(column.change[place]), at, place)
            for at, column in self._columns.items()
            for place in np.flatnonzero(~self._shown[at][0]).tolist()
        ]
        candidates = others
        if len(others) > room:
            asked = [layer for layer in others if self._is_asked(layer)]
            bad = [layer for layer in others if np.isinf(layer.change)]
            far = sorted((layer for layer in others if layer.change > 0), key=lambda layer: -layer.change)
            candidates = [*asked, *bad, *(far[: (room + 1) // 2] if due else [])]
        additions = list(dict.fromkeys(candidates))[:room]
        for addition in additions:
            self._layers[self._name(addition.column, addition.place)] = None
        for at in {addition.column for addition in additions}:
            self._show(*at)
        self.left_out = len(others) - len(additions)

    def _is_asked(self, layer: _Candidate) -> bool:
        return any(fnmatchcase(self._columns[layer.column].layers[layer.place], pattern) for pattern in self._asked)

    def _name(self, at: tuple[str, str], place: int) -> str:
        signal, op = at
        return f"{PREFIX}/{signal}/{label(self._columns[at].layers[place])}/{op}"

    def _show(self, signal: str, op: str) -> None:
        """Find the chosen layers of a column."""
        at = signal, op
        mask = np.zeros(len(self._columns[at].layers), np.bool_)
        names = [(place, self._name(at, place)) for place in range(len(mask))]
        series = [(place, name) for place, name in names if name in self._layers]
        mask[[place for place, _ in series]] = True
        self._shown[at] = mask, series

    def _of_layers(self, tensors: Mapping[str, SignalStep]) -> dict[str, float]:
        return {
            name: float(self._columns[at].values[place])
            for at, (_, series) in self._shown.items()
            if at[0] in tensors
            for place, name in series
        }


class _Candidate(NamedTuple):
    """Layer of a column without a series."""

    change: float
    column: tuple[str, str]
    place: int


def tensors_of(batches: Iterable[Batch]) -> list[Batch]:
    """Return the batches about tensors; collectives, whose rows are named by places in a program, are no layers."""
    return [batch for batch in batches if batch.signal not in (RUN, UNNAMED)]
