"""Layers whose outputs are zero."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from probe.core.moments import numels
from probe.core.records import Batch, Finding
from probe.core.rules.history import Field, History, measures
from probe.core.rules.reporter import Reporter

FEW = 16
"""An output of fewer elements than this may be zero for good reason: a penalty that is not due, a flag."""


class AnomalyDead:
    """Reports a module's output of which ``args.limit`` or more is zero in ``args.steps`` samples in a row, once.

    It must have been otherwise before, in as many samples; or all of it must have been zero from the start. So a module
    that gives sparse tensors always (one-hot codes, the dispatch masks of experts) is none, and neither is what starts
    at zero and moves, such as an adapter whose second matrix does. Gradients, parameters and inputs are not judged:
    rows of an embedding that no token names, masks and one-hot inputs are zero when nothing is wrong.

    The op ``zeros`` must be collected: it counts magnitudes below ``eps``.
    """

    def __init__(self, args: Any, rank: int, ops: Sequence[str]) -> None:
        self._limit: float = args.limit
        self._steps: int = args.steps
        self.history = History(
            [op for op in ("zeros",) if op in ops], {"streak": Field(0, np.int64), "alive": Field(0, np.int64)}
        )
        self._reporter = Reporter("AnomalyDead", rank, "limit")

    def judge(self, batch: Batch) -> Iterator[Finding]:
        if batch.signal != "actv":
            return
        readings = self.history.read(batch)
        outputs = np.array([key.part.startswith("output") for key in batch.keys], dtype=bool)
        judged = outputs & measures(batch.dtypes) & (numels(batch.shapes) >= FEW)
        readings = readings.where(judged[readings.at])
        off = readings.values >= self._limit
        streak, alive = self.history.of("streak"), self.history.of("alive")
        streak[readings.slots] = np.where(off, streak[readings.slots] + 1, 0)
        alive[readings.slots] += ~off
        was_alive = alive[readings.slots] >= self._steps
        dead = readings.where((streak[readings.slots] == self._steps) & (was_alive | (readings.values == 1)))
        yield from self._reporter.findings(batch, "zeros", dead.at, dead.values, np.full(len(dead.at), self._limit))
