"""Rows of one signal, judged together: the recent past of each row, and its distance from that past by itself."""

from __future__ import annotations

from math import isfinite, log
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.moments import numels
from probe.core.records import Array, Batch, Key
from probe.core.robust import COMMON_ROWS, Indices, common_movement, medians_of, spreads_of
from probe.core.rules.history import Field, History, measures

Mask = npt.NDArray[np.bool_]
Levels = npt.NDArray[np.floating[Any]]

LEAST = 24
"""Samples of a family before it is judged."""
RENEWAL = 16
"""Samples after which centres and spreads are taken anew: at each one, they would cost more than all else."""
COVERED = 0.75
"""Part of the window in which a row must have a number."""
FEWEST_ELEMENTS, FAINT = 16, log(1e-3)
"""Elements of a row that is judged; and the part of the median root mean square below which a gradient is at rounding
level, as a logarithm."""
SMALL = 64
"""Elements at which the least spread is wider by the root of 2."""
FEW_SAMPLES = 16
"""Weight of few samples in their spread: half as wide again at 16 of 32."""
CHANGED_ROWS, CHANGED_RATE, CHANGED_SIZE = 0.1, log(1.5), 2.0
"""Share of rows that come or go, and factor of the learning rate, with which the family begins another history; and
factor of the sizes of most activations beyond all that are held, which is another size of the batch."""
STAYS = 3
"""Samples in a row after which a change is another stage of training."""
OUTPUTS = frozenset({"actv", "actv_grad"})
"""Signals of which rows of one dimension are not judged: a number for each sample, such as a loss or the logarithm of a
probability, has no typical size."""
GRADIENTS = frozenset({"grad_unreduced", "grad_reduced", "actv_grad"})
TRAINED = GRADIENTS - OUTPUTS
"""Signals whose rows are the parameters that are trained."""
FLOORS = {
    "grad_unreduced": 0.25,
    "grad_reduced": 0.25,
    "actv": 0.05,
    "actv_grad": 0.25,
    "param_origin": 0.01,
    "param_updated": 0.01,
}
"""Signals that are judged, with the least spread of a logarithm."""


class Scores(NamedTuple):
    """Scores of the rows of one batch; NaN for rows that are not judged."""

    movements: Array
    """Logarithms of the root mean squares, relative to the median of the window."""
    common: Array
    """Movements that rows have in common."""
    residuals: Array
    """Movements without what the rows have in common."""
    spreads: Array
    centres: Array
    """Medians of the window, of norms."""
    rows: int
    """Number of rows that are judged."""

    @property
    def sizes(self) -> Array:
        """Residuals in robust standard deviations."""
        sizes: Array = np.abs(self.residuals) / self.spreads
        return sizes

    @property
    def largest(self) -> float:
        """Statistic of the step: the size of the largest residual; 0 if no row is judged."""
        return float(np.fmax.reduce(self.sizes, initial=0.0))

    @property
    def movement(self) -> float:
        """Movement of all rows: the mean of what is taken out; the median of few rows."""
        return float(np.nanmedian(self.movements) if self.is_alone else self.common.mean())

    @property
    def is_alone(self) -> bool:
        """True if rows are too few to take out a common movement."""
        return self.rows < COMMON_ROWS


class _Layout(NamedTuple):
    """All of a batch but its numbers."""

    keys: tuple[Key, ...]
    shapes: tuple[tuple[int, ...], ...]
    halves: Array
    """Half the logarithm of the number of elements of each row; NaN of a row that is not judged: one of few elements,
    or of no measurements, or without room."""
    kinds: Indices
    groups: list[Indices]
    """Places of the rows of each kind."""
    has_room: bool
    """True if each row has room in the history."""
    is_odd: bool
    """True if most rows are of other sizes than all that are held."""


class Family:
    """History of one signal.

    The logarithm of each row's root mean square is taken relative to its median of the window; what rows of one kind
    (matrices, vectors, embeddings, experts; each model and micro step apart) have in common in a step is taken out; and
    what is left is measured by its own robust spread, but by no less than a floor, which is wider for small rows and
    while few samples are held.

    Zeros are no numbers. Rows that come and go need a number in three quarters of the window. The history begins anew
    if the step goes back, if the learning rate changes by half, if a tenth of the rows come or go, and if most
    activations are twice as large as all that are held, or half as small, in three samples in a row; until then, such
    a sample is neither judged nor held.
    """

    def __init__(self, signal: str, window: int, limit: int) -> None:
        self._signal, self._window, self._limit = signal, window, limit
        self._codes: dict[tuple[object, ...], int] = {}
        self._trained: set[Key] = set()
        """Parameters that have had a gradient in this run."""
        self.is_odd = False
        """True if the last batch is of another size than all that are held."""
        self.is_another_stage = False
        """True if the last batch has begun another stage of training, for all signals."""
        self.begin()

    def begin(self) -> None:
        """Begin another history."""
        self._layout: _Layout | None = None
        fields = {
            "levels": Field(np.nan, np.float32, (self._window,)),
            "centre": Field(np.nan, np.float64),
            "offset": Field(np.nan, np.float64),
            "spread": Field(np.nan, np.float64),
            "floor": Field(np.nan, np.float64),
            "kind": Field(-1, np.int64),
            "smallest": Field(np.inf, np.float64),
            "largest": Field(0.0, np.float64),
        }
        self.history = History(("norm",), fields, self._limit)
        self._held, self._step, self._rate = 0, -1, np.nan
        self._offset = 0.0
        """Largest offset of any row."""
        self._narrowest = 0.0
        """Smallest spread of any row."""
        self._odd_steps: frozenset[int] = frozenset()
        """Latest steps, in a row, of another size."""

    def judge(self, batch: Batch, least: float = 0.0, far: float = 0.0) -> Scores | None:
        """Return the scores of a batch with norms, and hold its rows; None while too few samples are held.

        Args:
            least: size of a residual below which no scores are wanted, as long as no row has moved by ``far``.
        """
        self.is_another_stage = False
        if batch.step < self._step or self._is_changed(batch):
            self.begin()
        layout = self._layout_of(batch)
        self._odd_steps = self._odd_steps | {batch.step} if layout.is_odd else frozenset()
        if len(self._odd_steps) >= STAYS:
            self.begin()
            layout, self.is_another_stage = self._layout_of(batch), True
        self.is_odd = layout.is_odd
        if self.is_odd:
            return None
        rows = self.history.rows(batch)
        squares = batch.columns["sumsq"]
        levels: Array = 0.5 * np.log(np.where((squares > 0) & (squares < np.inf), squares, np.nan)) - layout.halves
        scores = self._scores(layout, rows, levels, least, far) if self._held >= LEAST else None
        self._hold(batch.step, *((rows, levels) if layout.has_room else (rows[rows >= 0], levels[rows >= 0])))
        return scores

    def _is_changed(self, batch: Batch) -> bool:
        """Return whether the learning rate or the set of rows is another one."""
        rate, before = batch.update.rate, self._rate
        self._rate = rate if isfinite(rate) else before
        if isfinite(rate) and isfinite(before) and rate != before and is_far(rate, before):
            return True
        if self._layout is None or batch.keys == self._layout.keys or not self._held:
            return False
        if self._signal in TRAINED:
            self.is_another_stage = len({*batch.keys} - self._trained) > CHANGED_ROWS * len(batch)
        return self._comers_and_goers(batch) > CHANGED_ROWS * len(batch)

    def _comers_and_goers(self, batch: Batch) -> int:
        """Return how many rows are seen for the first time, or are gone after they were always there."""
        index = self.history.index(batch.signal)
        levels = self.history.of("levels")
        steady = (~np.isnan(levels)).sum(axis=1) >= min(self._held, self._window)
        present = [index[key] for key in batch.keys if key in index]
        gone = int(steady.sum() - steady[present].sum())
        return gone + len(batch) - len(present)

    def _layout_of(self, batch: Batch) -> _Layout:
        layout = self._layout
        if layout is None or layout.keys != batch.keys or layout.shapes != batch.shapes:
            layout = self._layout = self._new_layout(batch)
        return layout

    def _new_layout(self, batch: Batch) -> _Layout:
        has_shapes = any(batch.shapes)  # files may have none
        elements = numels(batch.shapes) if has_shapes else np.full(len(batch), np.inf)
        forms = (_kind(*row) for row in zip(batch.keys, batch.shapes, strict=True))
        codes = [self._codes.setdefault(form, len(self._codes)) for form in forms]
        kinds = np.array(codes, dtype=np.int64)
        groups = [np.flatnonzero(kinds == code) for code in np.unique(kinds).tolist()]
        halves = 0.5 * np.log(np.maximum(elements, 1)) if has_shapes else np.zeros(len(batch))
        judged = measures(batch.dtypes) & (elements >= FEWEST_ELEMENTS)
        if has_shapes and self._signal in OUTPUTS:
            judged &= np.array([len(shape) > 1 for shape in batch.shapes])
        rows = self.history.rows(batch)
        rows_held = rows[rows >= 0]
        sizes = np.maximum(elements[rows >= 0], 1)  # empty ones are not judged
        self.history.of("kind")[rows_held] = kinds[rows >= 0]
        self.history.of("floor")[rows_held] = FLOORS[self._signal] * np.sqrt(1 + SMALL / sizes)
        halves = np.where(judged & (rows >= 0), halves, np.nan)
        is_odd = has_shapes and self._signal in OUTPUTS and self._have_other_sizes(rows_held, elements[rows >= 0])
        if self._signal in TRAINED:
            self._trained.update(batch.keys)
        return _Layout(batch.keys, batch.shapes, halves, kinds, groups, len(rows_held) == len(rows), is_odd)

    def _have_other_sizes(self, rows: Indices, elements: Array) -> bool:
        """Return whether most rows are of other sizes than all that are held; hold them if not."""
        smallest, largest = self.history.of("smallest"), self.history.of("largest")
        is_held = largest[rows] > 0
        resized = (elements > CHANGED_SIZE * largest[rows]) | (CHANGED_SIZE * elements < smallest[rows])
        if self._held >= LEAST and 2 * int((resized & is_held).sum()) > int(is_held.sum()):
            return True
        smallest[rows], largest[rows] = np.minimum(smallest[rows], elements), np.maximum(largest[rows], elements)
        return False

    def _scores(self, layout: _Layout, rows: Indices, levels: Array, least: float, far: float) -> Scores | None:
        if self._held == LEAST or self._held % RENEWAL == 0:
            self._renew()
        centres = self.history.of("centre")[rows]
        movements = levels - centres
        highest, lowest = float(np.fmax.reduce(movements, initial=0.0)), float(np.fmin.reduce(movements, initial=0.0))
        # what rows have in common lies between the two
        if max(highest, -lowest) < far and highest - lowest + self._offset < least * self._narrowest:
            return None  # mostly, and quicker
        common = common_movement(movements[:, None], layout.groups)[:, 0]
        residuals = movements - common - self.history.of("offset")[rows]
        spreads = self.history.of("spread")[rows]
        number = int((~np.isnan(residuals)).sum())
        return Scores(movements, common, residuals, spreads, np.exp(centres + layout.halves), number)

    def _renew(self) -> None:
        """Take centres and spreads of all rows that are held often enough, and not at rounding level."""
        levels, samples = self.history.of("levels"), min(self._held, self._window)
        numbers = (~np.isnan(levels)).sum(axis=1)
        at = np.flatnonzero(numbers >= COVERED * samples)
        centres = medians_of(levels[at])
        if self._signal in GRADIENTS and len(at):
            loud = centres >= np.median(centres) + FAINT
            at, centres = at[loud], centres[loud]
        for name in ("centre", "offset", "spread"):
            self.history.of(name)[:] = np.nan
        if not len(at):
            return
        usual: Levels = levels[at] - centres[:, None].astype(np.float32)  # sorted several times faster than 64 bits
        kinds = self.history.of("kind")[at]
        usual -= common_movement(usual, [np.flatnonzero(kinds == kind) for kind in np.unique(kinds).tolist()])
        offsets = medians_of(usual)
        wider = 1 + FEW_SAMPLES * (1 / numbers[at] - 1 / self._window)
        spreads = np.maximum(spreads_of(usual, offsets), self.history.of("floor")[at]) * wider
        self._offset, self._narrowest = float(np.abs(offsets).max()), float(spreads.min())
        self.history.of("centre")[at] = centres
        self.history.of("offset")[at] = offsets
        self.history.of("spread")[at] = spreads

    def _hold(self, step: int, rows: Indices, levels: Array) -> None:
        """Put the levels into the column of this step; rows that are not there have no number in it."""
        window = self.history.of("levels")
        if step != self._step:  # else another part of the same step
            self._held, self._step = self._held + 1, step
            window[:, (self._held - 1) % self._window] = np.nan
        window[rows, (self._held - 1) % self._window] = levels


def is_far(rate: float, before: float) -> bool:
    """Return whether a learning rate is another stage of training."""
    return min(rate, before) <= 0 or abs(log(rate / before)) > CHANGED_RATE


def _kind(key: Key, shape: tuple[int, ...]) -> tuple[object, ...]:
    """Kind of a row: rows of one kind move alike."""
    parts = key.name.lower().split(".")
    if any(part.startswith("expert") for part in parts):
        form = "expert"
    elif any("emb" in part or part in ("wte", "wpe") for part in parts):
        form = "embedding"
    else:
        form = "matrix" if len(shape) > 1 else "vector"
    return key.stage, key.micro_step, form
