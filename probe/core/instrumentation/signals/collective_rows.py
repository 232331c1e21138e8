"""The rows of the signal ``other``: all calls of one line, operation, group and direction in a step, as one."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from probe.core.instrumentation.recorder import Pending
from probe.core.moments import EMPTY, merge
from probe.core.records import Batch, Key

SIGNAL = "other"


class Call:
    """A collective on its way."""

    __slots__ = ("again", "began", "finished", "name")

    def __init__(self, name: str, again: bool) -> None:
        self.name, self.again = name, again
        self.began = time.perf_counter()
        self.finished: float | None = None

    def finish(self) -> None:
        """Notes the time of completion, once. May be called on any thread."""
        if self.finished is None:
            self.finished = time.perf_counter()


@dataclass
class Tally:
    """The calls of one row in this step."""

    order: int
    calls: list[Call] = field(default_factory=list)
    readings: list[int] = field(default_factory=list)
    bytes: int = 0


@dataclass
class Step:
    """What one step gave so far."""

    rows: dict[tuple[str, str], Tally] = field(default_factory=dict)
    orders: list[int] = field(default_factory=list)
    """Of each reading."""


def label(ranks: tuple[int, ...]) -> str:
    """What a group is called: ``ranks0-3`` for neighbours, ``ranks0-6by2`` at equal distances, ``ranks0+3+4`` else."""
    if len(ranks) == 1:
        return f"ranks{ranks[0]}"
    steps = {after - before for before, after in pairwise(ranks)}
    if len(steps) == 1 and (step := steps.pop()) > 0:
        return f"ranks{ranks[0]}-{ranks[-1]}" + (f"by{step}" if step > 1 else "")
    return "ranks" + "+".join(map(str, ranks))


def batches(pending: Pending, step: Step, number: int) -> list[Batch]:
    """One row for each tally, with the moments of all its readings together."""
    if not step.rows:
        return []
    read = next(iter(pending.batches(number)), None)
    rows = {key.call: row for row, key in enumerate(read.keys)} if read is not None else {}
    nothing = {name: EMPTY[name] for name in pending.columns}
    columns: dict[str, list[float]] = {name: [] for name in (*pending.columns, "count", "bytes", "seconds")}
    shapes, dtypes, order = [], [], []
    for tally in step.rows.values():
        there = [reading for reading in tally.readings if reading in rows]  # without what could not be reduced
        own = [read.shapes[rows[each]] for each in there] if read is not None else []
        readings = [_reading(read, rows[each]) for each in there] if read is not None else []
        row = merge([nothing, *readings], [0, *map(math.prod, own)])
        calls = sum(not call.again for call in tally.calls)
        row |= {"count": calls, "bytes": tally.bytes, "seconds": _seconds(tally.calls)}
        for name, values in columns.items():
            values.append(row[name])
        shapes.append(_together(own))
        dtypes.append("+".join(dict.fromkeys(read.dtypes[rows[each]] for each in there)) if read is not None else "")
        order.append(_decisive(tally, readings, [step.orders[each] for each in there]))
    return [
        Batch(
            signal=SIGNAL,
            step=number,
            keys=tuple(Key(name, direction) for name, direction in step.rows),
            shapes=tuple(shapes),
            dtypes=tuple(dtypes),
            order=np.array(order, dtype=np.int64),
            columns={name: np.array(values, dtype=np.float64) for name, values in columns.items()},
        )
    ]


def _reading(read: Batch, row: int) -> dict[str, float]:
    return {name: float(values[row]) for name, values in read.columns.items()}


def _seconds(calls: Sequence[Call]) -> float:
    """From call to completion, of all that are complete; NaN if none is."""
    times = [call.finished - call.began for call in calls if call.finished is not None]
    return sum(times) if times else math.nan


def _together(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape of all tensors of a row as one: stacked if they are alike, else end to end."""
    if len(shapes) == 1:
        return shapes[0]
    if shapes and len(set(shapes)) == 1:
        return (len(shapes), *shapes[0])
    return (sum(map(math.prod, shapes)),)


def _decisive(tally: Tally, readings: Sequence[dict[str, float]], orders: Sequence[int]) -> int:
    """When the row went bad, if it did: rules tell causes from effects by that. Else when it began."""
    for reading, order in zip(readings, orders, strict=True):
        if reading.get("nans") or reading.get("infs"):
            return order
    return tally.order
