"""Rule about parameters that get gradients and do not move."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from pydantic import Field as Argument

from probe.core.fields import Integer, Section
from probe.core.histogram import QUANTILES
from probe.core.moments import OPS, columns_for, numels
from probe.core.records import Array, Batch, Finding
from probe.core.rules.about import About, has_op
from probe.core.rules.history import Alignment, Field, History, Indices
from probe.core.rules.reporter import Reporter

Mask = npt.NDArray[np.bool_]

OP = "update"
"""Op of its findings, the change of a parameter: an op of its own, which no file has. Its value is 0."""
GRADIENTS = ("grad_reduced", "grad_unreduced")
EXTREMES, SUMS = frozenset({"min", "max"}), frozenset({"sum", "sumsq", "m2"})
SIZES = EXTREMES | {"sumsq", "m2"}
"""Moments whose relative change is meaningful; a sum may be near 0."""
PACE = 1e-6
"""Relative change a step, of the parameters that move, below which a step is not judged: an element of float32 cannot
change by less than 6e-8, and files have six digits."""
VISIBLE = 1e-5
"""Relative change of a parameter that shows in the numbers of files, which have six digits."""
DRIVING = 1e-5
"""Size of a gradient, as a part of the median of all parameters' in the step, below which it does not drive: where
gradients cancel (biases of attention's keys, or before a normalisation), only their rounding is left, which is 1e-7 of
the terms in float32."""
FADED = 1e-3
"""Part of its own largest size below which a gradient does not drive its parameter either: that part has converged."""
FORGETTING = 0.99
"""Factor by which the largest size decays in each sampled step."""


class FrozenArgs(Section):
    """Parameters that get gradients and do not move. Needs param_distribution and wg_distribution; of ops, min or max,
    and one of norm, mean and std."""

    steps: Integer = Argument(5, ge=1, le=10_000)
    """Number of sampled steps in a row in which a parameter must not change, while others do, before it is reported."""


class AnomalyFrozen(About):
    """Report a parameter that a gradient drives and that does not change, once, until it moves.

    Its numbers before and after the update must be the same in every collected op, in ``args.steps`` sampled steps in a
    row in which others moved; and the same as at the first of these, so that it did not move in between either.

    A step is not judged if fewer than half of the parameters with a gradient move, or if they move by less than a
    millionth: a learning rate of 0, as in the first step of a warm-up and the last of a decay, or a skipped step. A
    parameter without a gradient (frozen on purpose, unused) is not judged, nor is one that is not finite, nor one
    whose gradient has a root mean square below a hundred-thousandth of the median of all parameters, or below a
    thousandth of its own in earlier steps.

    If nothing moves at all, the step is judged if its update was applied with a known learning rate above 0, and if
    for half of the parameters the rate times the gradient (at most 1, as Adam's) would be visible: a hundred-thousandth
    of the parameter.

    It needs ``param_distribution`` and ``wg_distribution``; an extreme (``min`` or ``max``), as the norm of very many
    elements may not show a small update; and a sum (``norm``, ``mean`` or ``std``), as the extremes of an embedding may
    stay while other rows of it move. ``param_updated`` must be the last of a step's signals of parameters and
    gradients.
    """

    Args = FrozenArgs
    title = "Frozen parameter"
    why = "Part of the model stays as it is, and the loss falls by the rest."
    source = "https://github.com/pytorch/xla/issues/1623"
    sees = "numbers of each parameter before and after the update, and of its gradient"
    kind = "frozen"
    finds = "finds parameters that do not move"
    needs = (
        (lambda s: s.param_distribution and s.wg_distribution, "param_distribution and wg_distribution"),
        (lambda s: has_op(s, "min", "max"), "the op min or max"),
        (lambda s: has_op(s, "norm", "mean", "std"), "one of the ops norm, mean and std"),
    )
    by_default = True
    compares = True

    def __init__(self, args: FrozenArgs, rank: int, ops: Sequence[str]) -> None:
        self._steps: int = args.steps
        self._moments = columns_for(op for op in ops if op in OPS and op not in QUANTILES)
        self._sizes = [n for n, name in enumerate(self._moments) if name in SIZES]
        self._kinds = [np.array([name in kind for name in self._moments], dtype=bool) for kind in (EXTREMES, SUMS)]
        self._suffices = all(kind.any() for kind in self._kinds)
        fields = {"streak": Field(0, np.int64), "first": Field(np.nan, np.float64, (len(self._moments),))}
        fields["largest"] = Field(0, np.float64)
        self.history = History((OP,), fields)
        self._latest: dict[str, Batch] = {}
        self._places: dict[str, Alignment] = {name: Alignment() for name in ("param_origin", *GRADIENTS)}
        self._reporter = Reporter("AnomalyFrozen", rank, "movement")

    def judge(self, batch: Batch) -> Iterator[Finding]:
        if batch.signal in self._places:
            self._latest[batch.signal] = batch
        elif batch.signal == "param_updated":
            before = self._latest.get("param_origin")
            if self._suffices and before is not None and before.step == batch.step and len(batch):
                yield from self._compare(before, batch)

    def _compare(self, before: Batch, after: Batch) -> Iterator[Finding]:
        now, then = self._numbers(after), self._aligned("param_origin", before, after)
        lacking = self._lacking(after) | (self._aligned("param_origin", before, after, self._lacking(before)) != 0)
        enough = np.stack([(~lacking & kind).any(axis=1) for kind in self._kinds]).all(axis=0)
        still: Mask = ((now == then) | lacking).all(axis=1)
        if after.update.outcome == "skipped" or not (gradients := self._gradients(after)):
            return
        rows = self.history.rows(after)
        at = np.flatnonzero(rows >= 0)
        slots = rows[at]
        driven = _driven(gradients) & enough
        driven[at] &= self._is_usual(slots, np.fmax.reduce(gradients)[at])
        if not (driven & ~still).any():
            driven = _should_move(driven, after, gradients) & enough
        elif not _is_telling(driven, still, _pace(then[:, self._sizes], now[:, self._sizes])):
            return
        if not driven.any():
            return
        streak, first = self.history.of("streak"), self.history.of("first")
        same = (now[at] == first[slots]) | lacking[at] | np.isnan(first[slots])
        stays = (driven & still)[at] & ((streak[slots] == 0) | same.all(axis=1))
        first[slots[streak[slots] == 0]] = now[at[streak[slots] == 0]]
        streak[slots] = np.where(stays, streak[slots] + 1, 0)
        frozen = at[streak[slots] == self._steps]
        yield from self._reporter.findings(after, OP, frozen, np.zeros(len(frozen)), np.full(len(frozen), np.nan))

    def _is_usual(self, slots: Indices, sizes: Array) -> Mask:
        """Return which gradients are not far smaller than they have been; remember how large they are."""
        largest = self.history.of("largest")
        largest[slots] = np.fmax(FORGETTING * largest[slots], sizes)
        mask: Mask = sizes >= FADED * largest[slots]
        return mask

    def _numbers(self, batch: Batch) -> Array:
        """Collected moments of each row: ``len(batch)`` x moments."""
        nothing = np.zeros(len(batch))
        return np.stack([batch.columns.get(name, nothing) for name in self._moments], axis=1)

    def _lacking(self, batch: Batch) -> Mask:
        """Return the mask of the collected moments that a row of a file lacks: ``len(batch)`` x moments."""
        if not batch.absent and {*self._moments} <= {*batch.columns}:  # mostly, and quicker
            return np.zeros((len(batch), len(self._moments)), np.bool_)
        columns = [batch.absent.get(name, name not in batch.columns) for name in self._moments]
        return np.stack([np.broadcast_to(column, len(batch)) for column in columns], axis=1)

    def _aligned(self, signal: str, batch: Batch, others: Batch, cells: Array | Mask | None = None) -> Array:
        """Return the moments of ``batch``, or other cells, in the order of ``others``; NaN, which equals nothing, where
        it has no row."""
        at = self._places[signal].of(others.keys, batch.keys)
        numbers = self._numbers(batch) if cells is None else cells
        return np.where((at >= 0)[:, None], numbers[at], np.nan)

    def _gradients(self, after: Batch) -> list[Array]:
        """Return the sizes of the gradients of each parameter, by signal; NaN where there is none, or no finite one."""
        gradients = []
        for signal in GRADIENTS:
            gradient = self._latest.get(signal)
            if gradient is not None and gradient.step == after.step and len(gradient):
                at = self._places[signal].of(after.keys, gradient.keys)
                gradients.append(np.where(at >= 0, _sizes(gradient)[at], np.nan))
        return gradients


def _sizes(batch: Batch) -> Array:
    """Root mean square of each row or, if it was not collected, its largest magnitude; NaN if that is not finite."""
    columns, counts = batch.columns, np.maximum(numels(batch.shapes), 1)
    if "sumsq" in columns:
        sizes = np.sqrt(columns["sumsq"] / counts)
    elif "m2" in columns and "sum" in columns:
        sizes = np.sqrt(columns["m2"] / counts + (columns["sum"] / counts) ** 2)
    else:
        sizes = _peaks(batch)
    return np.where(np.isfinite(sizes), sizes, np.nan)


def _peaks(batch: Batch) -> Array:
    """Return the largest magnitude that is known of each row."""
    magnitudes = [np.abs(batch.columns[name]) for name in EXTREMES if name in batch.columns]
    peaks: Array = np.fmax.reduce(magnitudes) if magnitudes else np.full(len(batch), np.nan)
    return peaks


def _driven(gradients: Sequence[Array]) -> Mask:
    """Return the mask of the parameters with a gradient that is finite, not 0 and no mere rounding."""
    masks = []
    for sizes in gradients:
        some = sizes[sizes > 0]
        masks.append((sizes > 0) & (sizes >= (DRIVING * np.median(some) if len(some) else 0.0)))
    mask: Mask = np.logical_or.reduce(masks)
    return mask


def _should_move(driven: Mask, after: Batch, gradients: Sequence[Array]) -> Mask:
    """Return the mask of the driven parameters that the update must have changed visibly; none if fewer than half."""
    if after.update.outcome != "applied" or not after.update.rate > 0:
        return np.zeros(len(after), dtype=bool)
    with np.errstate(invalid="ignore"):
        pushes = np.fmin(np.fmax.reduce(gradients), 1.0) * after.update.rate
        mask: Mask = driven & (pushes >= VISIBLE * _peaks(after))
    return mask & bool(2 * mask.sum() >= driven.sum())


def _pace(before: Array, after: Array) -> Array:
    """Return the largest relative change of any moment of a row; 0 where it does not move, NaN if not finite."""
    with np.errstate(invalid="ignore", divide="ignore"):
        changes: Array = np.abs(after - before) / np.maximum(np.abs(before), np.abs(after))
    largest: Array = np.where(changes > 0, changes, 0.0).max(axis=1)
    return largest


def _is_telling(driven: Mask, still: Mask, pace: Array) -> bool:
    """Return whether enough parameters move in this step for one that does not to be suspicious."""
    moving = driven & ~still
    return bool(2 * moving.sum() >= driven.sum() > 0 and np.median(pace[moving]) >= PACE)
