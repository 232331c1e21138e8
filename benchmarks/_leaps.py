"""Leaps of healthy values from their recent ones, from which the limit of ``AnomalySpike`` is chosen.

Computed independently of the rule, from whole series: for each value the median and the spread of those of the same key
in the ``window`` steps before it, as ``probe/core/rules/spike.py`` describes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from probe.core.records import Batch
from probe.core.robust import MAD_TO_SIGMA, medians_of
from probe.core.rules.history import measures
from probe.core.rules.spike import EXTREMES, FEW, SQUARES

Array = npt.NDArray[np.float64]
SIDES = {"min": -1, "max": 1}


def leaps(steps: Sequence[Sequence[Batch]], args: Any) -> dict[tuple[str, str], float]:
    """Largest ratio to the median beyond ``args.threshold`` spreads, by signal and op: the rule would report it if its
    limit for that op were lower. Second moments count by their roots."""
    found: dict[tuple[str, str], float] = {}
    for signal in sorted({batch.signal for batches in steps for batch in batches}):
        batches = [batch for each in steps for batch in each if batch.signal == signal]
        series = {op: _series(batches, op) for op in {*args.ops, *EXTREMES}}
        peaks = np.fmax(*(np.abs(series[op]) for op in EXTREMES))
        power = 2 if signal in SQUARES else 1
        medians = {op: _medians(_kept(series[op], op, power), args) for op in series}
        for op in args.ops:
            usual, spread = medians[op]
            if op in EXTREMES:
                usual = np.fmax(*(medians[other][0] for other in EXTREMES))
            excess = np.log(np.abs(series[op])) / power - usual
            if op == "norm":
                with np.errstate(invalid="ignore"):
                    excess = np.where((series[op] / peaks) ** 2 >= FEW, np.abs(excess), excess)
            found[signal, op] = float(np.exp(excess[excess > args.threshold * spread].max(initial=0.0)))
    return found


def _series(batches: Sequence[Batch], op: str) -> Array:
    """Values of steps x keys; NaN where there is none to be judged."""
    index = {key: n for n, key in enumerate(dict.fromkeys(key for batch in batches for key in batch.keys))}
    series = np.full((len(batches), len(index)), np.nan)
    for row, batch in zip(series, batches, strict=True):
        row[[index[key] for key in batch.keys]] = np.where(measures(batch.dtypes), batch.op(op), np.nan)
    return np.where(np.isfinite(series) & (series != 0), series, np.nan)


def _kept(series: Array, op: str, power: int) -> Array:
    """Logarithms of the values that count as usual: of extremes, those on their own side of 0."""
    return np.where(SIDES.get(op, 0) * series >= 0, np.log(np.abs(series)) / power, np.nan)


def _medians(kept: Array, args: Any) -> tuple[Array, Array]:
    """Median and spread, in standard deviations, of the steps before each; NaN where there are too few."""
    before = np.concatenate([np.full((args.window, kept.shape[1]), np.nan), kept[:-1]])
    medians, spreads = np.full(kept.shape, np.nan), np.full(kept.shape, np.nan)
    for column in range(kept.shape[1]):  # one key at a time: all at once would take gigabytes
        windows = sliding_window_view(before[:, column], args.window)
        ready = (~np.isnan(windows)).sum(1) >= args.warm_up
        if ready.any():
            middle = medians_of(windows[ready])
            medians[ready, column] = middle
            spreads[ready, column] = MAD_TO_SIGMA * medians_of(np.abs(windows[ready] - middle[:, None]))
    return medians, spreads
