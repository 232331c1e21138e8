"""Histograms over powers of two: counts by sign and exponent, which add up exactly over parts of a tensor.

One vector of ``BINS`` counts a tensor, in the order of the numbers: minus infinity, large to small negative ones, zero,
small to large positive ones, infinity; NaN last. An octave ``[2**e, 2**(e + 1))`` is a bin. Magnitudes below ``2**LOW``
count in a bin next to zero, those of ``2**HIGH`` or more in one next to infinity.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

HISTOGRAM = "histogram"
"""Name of the op, and of the column that holds ``rows x BINS`` counts."""
QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}
"""Ops that are derived from a histogram."""
LOW, HIGH = -64, 32
"""Exponents from 2**-64 (5e-20) up to 2**32 (4e9) have bins of their own."""
INFINITE = HIGH - LOW + 3
"""Distance of the bins of the infinities from that of zero."""
ZERO = INFINITE
NAN = 2 * INFINITE + 1
BINS = NAN + 1

_CELL = re.compile(r"(-?)(2\^(-?\d+)|0|inf|nan):(\d+)")


def _lower_edges() -> Array:
    """Return the smallest magnitude of the bins at each distance from zero."""
    return np.array([0.0, 0.0, *(2.0**e for e in range(LOW, HIGH + 1)), math.inf])


LOWER = _lower_edges()
UPPER = np.array([0.0, *LOWER[2:-1], math.inf, math.inf])
"""Magnitudes from which on values are too large for the bins at each distance from zero, except zero and infinity."""


def width(columns: Sequence[str]) -> int:
    """Return the number of values in a row of ``columns``."""
    return len(columns) + (BINS - 1) * columns.count(HISTOGRAM)


def counts(array: npt.NDArray[Any]) -> Array:
    """Compute the ``BINS`` counts of a float32 or float64 array, by the bits of its elements: one pass over
    integers."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype == np.float32:
        bias, bits = 127, (flat.view(np.uint32) >> np.uint32(23)).astype(np.int64)
    else:
        bias, bits = 1023, (flat.view(np.uint64) >> np.uint64(52)).astype(np.int64)
    kinds = np.bincount(bits, minlength=4 * (bias + 1)).reshape(2, -1)
    exponents = np.arange(1, kinds.shape[1] - 1) - bias
    distances = np.clip(exponents, LOW - 1, HIGH) - LOW + 2
    row = np.zeros(BINS)
    for sign, of_sign in zip((1, -1), kinds, strict=True):
        row += np.bincount(ZERO + sign * distances, of_sign[1:-1], BINS)
    if kinds[:, 0].any():  # zeros and subnormal numbers
        row[ZERO] += np.count_nonzero(flat == 0)
        small = np.abs(flat) < np.finfo(flat.dtype).tiny
        row[ZERO + 1] += np.count_nonzero(small & (flat > 0))
        row[ZERO - 1] += np.count_nonzero(small & (flat < 0))
    if kinds[:, -1].any():
        row[NAN] += np.count_nonzero(np.isnan(flat))
        row[ZERO + INFINITE] += np.count_nonzero(flat == math.inf)
        row[ZERO - INFINITE] += np.count_nonzero(flat == -math.inf)
    return row


def shifted(histograms: Array, scale: Array) -> Array:
    """Return the histograms of ``x / scale`` from those of ``x``; exact for powers of two, else to the nearest of them.
    Elements in bins that are no octaves stay where they are."""
    with np.errstate(all="ignore"):
        powers = np.nan_to_num(np.rint(np.log2(scale)), posinf=0.0, neginf=0.0).astype(np.int64)
    result = histograms.copy()
    distances = np.arange(2, INFINITE - 1)
    for power in set(powers.tolist()) - {0}:
        rows = powers == power
        to = np.clip(distances - power, 1, INFINITE - 1)
        for sign in (1, -1):
            shifted_counts = histograms[rows][:, ZERO + sign * distances]
            part = result[rows]
            part[:, ZERO + sign * distances] -= shifted_counts
            for column, target in enumerate(ZERO + sign * to):
                part[:, target] += shifted_counts[:, column]
            result[rows] = part
    return result


def quantile(histograms: Array, q: float) -> Array:
    """Return the quantile of the elements that are not NaN, as ``numpy.quantile`` defines it; NaN if there are none.

    Elements are assumed to lie evenly (in their logarithm) within their bin, so that each is off by less than its bin's
    width: a factor of 2 at most. Zero, infinity and the sign are exact; magnitudes above ``2**HIGH`` count as that.
    """
    numbers = histograms[:, :NAN]
    totals = numbers.sum(axis=1)
    position = q * np.maximum(totals - 1, 0)
    below = np.floor(position)
    low, high = (_element(numbers, at) for at in (below, np.minimum(below + 1, np.maximum(totals - 1, 0))))
    part = position - below
    with np.errstate(invalid="ignore"):
        between = np.where((part == 0) | (low == high), low, low * (1 - part) + high * part)
    return np.where(totals > 0, between, np.nan)


def _element(numbers: Array, at: Array) -> Array:
    """Estimate the ``at``-th smallest element of each row."""
    ends = np.cumsum(numbers, axis=1)
    bins = np.minimum((ends <= at[:, None]).sum(axis=1), NAN - 1)
    rows = np.arange(len(numbers))
    inside = numbers[rows, bins]
    with np.errstate(invalid="ignore", divide="ignore"):
        part = (at - (ends[rows, bins] - inside) + 0.5) / inside
    distance = bins - ZERO
    size = np.abs(distance)
    grown = np.where(distance < 0, 1 - part, part)
    with np.errstate(invalid="ignore"):
        value = np.where(size == 1, UPPER[1] * grown, LOWER[size] * 2.0**grown)
    value = np.where(size >= INFINITE - 1, LOWER[size], value)
    return np.where(size == 0, 0.0, np.copysign(value, distance))


def buckets(histogram: Array) -> dict[str, Any]:
    """Return the histogram as TensorBoard has it: the finite numbers by the right ends of adjoining buckets, with sums
    computed from the middles of the bins. Magnitudes above ``2**HIGH`` are assumed to be less than twice that."""
    finite = histogram[1 : NAN - 1]
    filled = np.flatnonzero(finite)
    if not len(filled):
        return {"bucket_limit": [0.0], "bucket": [0.0]}
    distances = np.arange(1, NAN - 1) - ZERO
    outer = np.minimum(UPPER, 2.0 ** (HIGH + 1))[np.abs(distances)]
    inner = np.where(distances == 0, 0.0, LOWER[np.abs(distances)])
    lower, right = np.where(distances < 0, -outer, inner), np.where(distances < 0, -inner, outer)
    middles, first, last = (lower + right) / 2, filled[0], filled[-1]
    limits, numbers = right[first : last + 1].tolist(), finite[first : last + 1].tolist()
    if first:  # an empty bucket marks where the first one begins
        limits, numbers = [float(lower[first]), *limits], [0.0, *numbers]
    return {
        "min": float(lower[first]),
        "max": float(right[last]),
        "num": float(finite.sum()),
        "sum": float(finite @ middles),
        "sum_squares": float(finite @ middles**2),
        "bucket_limit": limits,
        "bucket": numbers,
    }


def text_of(histogram: Array) -> str:
    """Return the text for a cell of a table: ``-2^-3:5;0:7;2^4:1``, for each bin that is not empty its smallest
    magnitude and count. ``2^-65`` stands for all magnitudes below ``2^-64``, ``2^32`` for all from there on."""
    filled = np.flatnonzero(histogram)
    return ";".join(f"{_name(int(at))}:{histogram[at]:.0f}" for at in filled)


def _name(at: int) -> str:
    if at == NAN:
        return "nan"
    distance = at - ZERO
    size = abs(distance)
    name = "0" if size == 0 else "inf" if size == INFINITE else f"2^{size + LOW - 2}"
    return f"-{name}" if distance < 0 else name


def parsed(text: str) -> Array:
    """Parse the text that :func:`text_of` has written.

    Raises:
        ValueError: if it is another text.
    """
    row = np.zeros(BINS)
    for cell in text.split(";") if text else ():
        match = _CELL.fullmatch(cell)
        if match is None or (match[3] is not None and not LOW - 1 <= int(match[3]) <= HIGH):
            raise ValueError(f"expected a histogram such as -2^-3:5;0:7;2^4:1, got {cell!r}")
        sign = -1 if match[1] else 1
        places = {"nan": NAN - ZERO, "0": 0, "inf": sign * INFINITE}
        row[ZERO + places.get(match[2], sign * (int(match[3] or 0) - LOW + 2))] += int(match[4])
    return row
