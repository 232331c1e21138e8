"""Search of the cause of an incident backwards in the rows of its rank, which are held while they are judged."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.analysis.diagnosis.located_finding import BACKWARD, FORWARD, REDUCED, Located
from probe.core.hindsight.excursions import Indices, Mask, NormTable
from probe.core.hindsight.look_back import HELD, Search
from probe.core.hindsight.onset import Onset
from probe.core.hindsight.usual_rows import FLOORS, GRADIENTS, logs_of
from probe.core.moments import numels
from probe.core.naming import signal_of
from probe.core.records import Batch, Key
from probe.core.rules.causal_order import position
from probe.core.storage.layout import cell_name

MOST_NUMBERS = 4_000_000
"""Numbers of a rank that are held; with more rows in a step, fewer steps are."""
UNKNOWN = -1
KINDS = [*FLOORS]
"""Kinds of rows, each a signal: they rise and fall together."""
WEIGHT_GRADIENTS = "grad_unreduced", "grad_reduced"
"""Gradients that lie upstream of every later step, through the weights."""


class SoughtRow(NamedTuple):
    """Row in which a cause is sought."""

    signal: str
    key: Key
    order: int
    """Position among the rows of its signal, as they were first seen."""
    micro_stepped: bool

    @property
    def module(self) -> str:
        """Module whose row it is."""
        return self.key.name if self.key.part else self.key.name.rpartition(".")[0]


class _Line(NamedTuple):
    step: int
    places: Indices
    logs: npt.NDArray[np.float32]
    healthy: bool


class RecordedNorms:
    """Norms of the rows of one rank in the latest sampled steps."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._places: dict[tuple[str, Key], int] = {}
        self._rows: list[SoughtRow] = []
        self._at: dict[str, tuple[tuple[Key, ...], Indices, Indices]] = {}
        """Keys of the latest batch of each signal, with their places and sizes."""
        self._parts: Sequence[Indices] = ()
        self._whole: Indices = np.empty(0, np.int64)
        """Places of the rows of the latest step, by signal and together."""
        self._lines: deque[_Line] = deque(maxlen=HELD)

    def add(self, step: int, batches: Sequence[Batch], healthy: bool) -> None:
        """Hold the norms of a sampled step.

        Args:
            healthy: whether nothing was found in it.
        """
        places, logs = list[Indices](), [np.empty(0)]
        for batch in batches:
            if batch.signal in FLOORS and "sumsq" in batch.columns:
                at, sizes = self._places_of(batch)
                places.append(at)
                logs.append(logs_of(batch.signal, batch.op("norm"), sizes))
        line = _Line(step, self._joined(places), np.concatenate(logs).astype(np.float32), healthy)
        self._lines.append(line)
        while len(self._lines) > 1 and len(self._lines) * len(self._rows) > MOST_NUMBERS:
            self._lines.popleft()

    def _joined(self, places: Sequence[Indices]) -> Indices:
        """Return the places of all rows of a step: the same object while they are the same."""
        same = len(places) == len(self._parts)
        if not same or any(one is not other for one, other in zip(places, self._parts, strict=True)):
            self._parts, self._whole = places, np.concatenate([np.empty(0, np.int64), *places])
        return self._whole

    def _places_of(self, batch: Batch) -> tuple[Indices, Indices]:
        keys, places, sizes = self._at.get(batch.signal, ((), None, None))
        if places is None or sizes is None or keys != batch.keys:
            for key, order in zip(batch.keys, batch.order.tolist(), strict=True):
                if self._places.setdefault((batch.signal, key), len(self._rows)) == len(self._rows):
                    self._rows.append(SoughtRow(batch.signal, key, order, batch.micro_stepped))
            places = np.array([self._places[batch.signal, key] for key in batch.keys], np.int64)
            sizes = numels(batch.shapes).astype(np.int64)
            self._at[batch.signal] = batch.keys, places, sizes
        return places, sizes

    def onset(self, failed: Located | None = None) -> Onset:
        """Look back from the latest step.

        Args:
            failed: first finding of the incident; None if it is about the whole model, such as the loss.
        """
        names, signals = [cell_name(row.key) for row in self._rows], [row.signal for row in self._rows]
        answer = self.search(failed).answer(names, signals, [line.step for line in self._lines])
        return answer._replace(ranks=(self._rank,)) if answer.where else answer

    def search(self, failed: Located | None = None) -> Search:
        """Return the search from the latest step; its argument is that of :meth:`onset`."""
        logs = np.full((len(self._lines), len(self._rows)), np.nan)
        for at, line in enumerate(self._lines):
            logs[at, line.places] = line.logs
        if len(logs) > 1:  # what is not finite at the incident itself is as it was before
            logs[-1] = np.where(np.isfinite(logs[-1]), logs[-1], logs[-2])
        kinds = np.array([KINDS.index(row.signal) for row in self._rows], np.int64)
        table = NormTable(logs, kinds, np.array([FLOORS[row.signal] for row in self._rows]))
        depths, healthy = self._depths(), np.array([line.healthy for line in self._lines], np.bool_)
        return Search(table, self._upstream(failed, depths), self._order(depths), healthy)

    def _depths(self) -> Indices:
        """Return the position of each row's module in the order of the forward; -1 where it is unknown."""
        first: dict[str, int] = {}
        for row in self._rows:
            if row.signal == "actv" and row.key.micro_step == 0:
                first[row.module] = min(row.order, first.get(row.module, row.order))
        return np.array(
            [row.order if row.signal == "actv" else _depth(row.module, first) for row in self._rows], np.int64
        )

    def _upstream(self, failed: Located | None, depths: Indices) -> Mask:
        """Return the rows that lie before what failed in the order of execution, itself included."""
        phases = np.array([signal_of(row.signal).phase for row in self._rows], np.int64)
        everywhere = np.ones(len(phases), np.bool_)
        if failed is None or failed.phase not in (FORWARD, BACKWARD, REDUCED):
            return everywhere
        place = self._places.get((failed.finding.signal, failed.finding.key))
        depth = UNKNOWN if place is None else int(depths[place])
        if depth == UNKNOWN:
            return everywhere
        unknown = depths == UNKNOWN
        upstream: Mask
        if failed.phase == FORWARD:
            upstream = (depths <= depth) | unknown
            return upstream
        of_weights = np.array([row.signal in WEIGHT_GRADIENTS for row in self._rows], np.bool_)
        upstream = (phases <= FORWARD) | of_weights | (depths >= depth) | unknown
        return upstream

    def _order(self, depths: Indices) -> Indices:
        """Return the place of each row in the order of cause."""
        places = [
            (
                *position(0, signal_of(row.signal).phase, row.key.micro_step if row.micro_stepped else None),
                int(-depth if row.signal in GRADIENTS else depth),
                row.order,
            )
            for row, depth in zip(self._rows, depths, strict=True)
        ]
        ranks = {n: place for place, n in enumerate(sorted(range(len(places)), key=places.__getitem__))}
        return np.array([ranks[n] for n in range(len(places))], np.int64)


def _depth(module: str, first: dict[str, int]) -> int:
    """Return the position of a module in the order of the forward, else that of the one around it."""
    while module not in first and module:
        module = module.rpartition(".")[0]
    return first.get(module, UNKNOWN) if module else UNKNOWN
