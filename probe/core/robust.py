"""Robust statistics of many short series at once: medians, spreads, and the movement that rows have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

MAD_TO_SIGMA = 1.4826
"""Standard deviation of a normal distribution, in median absolute deviations."""
COMMON_ROWS = 8
"""Fewest rows whose median is their common movement: of fewer, the judged row itself moves the median too much."""


def medians_of(windows: npt.NDArray[np.floating[Any]]) -> Array:
    """Return the median of each row without its NaN padding; NaN of a row without a number.

    Several times faster than ``numpy.nanmedian``, which treats short rows one by one.
    """
    ordered = np.sort(windows, axis=1)  # NaN last
    number = ordered.shape[1]
    if not np.isnan(ordered[:, -1]).any():  # mostly, and quicker
        low, high = ordered[:, (number - 1) // 2], ordered[:, number // 2]
    else:
        counts, rows = number - np.isnan(windows).sum(axis=1), np.arange(len(windows))
        low, high = ordered[rows, (counts - 1) // 2], ordered[rows, counts // 2]
    middle: Array = (low + high).astype(np.float64) / 2
    return middle


def medians(values: Array, axis: int) -> Array:
    """Return medians along an axis without NaN; NaN where there is nothing. Infinities must not occur."""
    ordered = np.sort(values, axis=axis)  # NaN come last
    count = np.expand_dims(np.isfinite(ordered).sum(axis=axis), axis)
    low = np.take_along_axis(ordered, np.maximum(count - 1, 0) // 2, axis)
    high = np.take_along_axis(ordered, np.minimum(count // 2, values.shape[axis] - 1), axis)
    return np.squeeze((low + high) / 2, axis)


def spreads_of(windows: npt.NDArray[np.floating[Any]], centres: Array) -> Array:
    """Return the robust standard deviation of each row about its centre."""
    spreads: Array = MAD_TO_SIGMA * medians_of(np.abs(windows - centres[:, None].astype(windows.dtype)))
    return spreads


def common_movement(
    movements: npt.NDArray[np.floating[Any]], kinds: Iterable[Indices] = (), least: int = COMMON_ROWS
) -> Array:
    """Return the movement that each row has in common with the others: the median over the rows, in each column.

    Rows of a kind are compared with each other; where fewer than ``least`` of a kind have a number, with all
    rows; and where these are fewer, with nothing: the movement is 0.

    Args:
        movements: rows x samples, NaN where a row has no number.
        kinds: rows of each kind; all rows are one kind if it is empty.

    Returns:
        An array of the shape of ``movements``.
    """
    common: Array = np.full(movements.shape, np.nan)
    for rows in kinds:
        if len(rows) >= least:
            common[rows] = _middle(movements if len(rows) == len(movements) else movements[rows], least)
    lacking = np.isnan(common)
    if lacking.any():
        whole = np.broadcast_to(np.nan_to_num(_middle(movements, least)), movements.shape)
        common[lacking] = whole[lacking]
    return common


def _middle(movements: npt.NDArray[np.floating[Any]], least: int) -> Array:
    """Return the median of each column; NaN of one with fewer numbers than ``least``."""
    columns = np.ascontiguousarray(movements.T)
    middle: Array = np.where(columns.shape[1] - np.isnan(columns).sum(axis=1) >= least, medians_of(columns), np.nan)
    return middle
