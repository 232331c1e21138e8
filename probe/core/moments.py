"""Moments, the columns that one reduction of a tensor yields, and every op derived from them.

A framework computes moments; this module defines their meaning, on the host, in float64 NumPy. Moments of shards merge
exactly. To add an op, add a line to ``OPS``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.histogram import BINS, HISTOGRAM, QUANTILES, quantile

Array = npt.NDArray[np.float64]
Shapes = Sequence[tuple[int, ...]]

MOMENTS: dict[str, str] = {
    "min": "smallest element; NaN if any element is NaN",
    "max": "largest element; NaN if any element is NaN",
    "sum": "sum of the elements",
    "sumsq": "sum of the squares of the elements",
    "m2": "sum of the squared deviations from the mean",
    "nans": "number of NaN elements",
    "infs": "number of infinite elements",
    "below": "number of elements whose magnitude is below eps",
}
"""Moments that a framework computes. Complex elements count by their magnitude, bool as 0 and 1."""

EMPTY: dict[str, float] = {
    "min": np.nan, "max": np.nan, "sum": 0.0, "sumsq": 0.0, "m2": 0.0, "nans": 0.0, "infs": 0.0, "below": 0.0
}  # fmt: skip
"""Moments of a tensor without elements, which no framework computes."""


def numels(shapes: Shapes) -> Array:
    """Return the element counts of ``shapes``, as a read-only array."""
    return _numels(tuple(shapes))


@lru_cache(maxsize=8)
def _numels(shapes: tuple[tuple[int, ...], ...]) -> Array:
    counts = np.array([math.prod(shape) for shape in shapes], dtype=np.float64)
    counts.flags.writeable = False
    return counts


def _mean(total: Array, shapes: Shapes) -> Array:
    counts = numels(shapes)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(counts > 0, total / counts, np.nan)


def _scalar(total: Array, shapes: Shapes) -> Array:
    return np.where([len(shape) == 0 for shape in shapes], total, np.nan).astype(np.float64)


class Op(NamedTuple):
    """Op: a number derived from one moment and the shape."""

    moment: str
    derive: Callable[[Array, Shapes], Array]
    meaning: str


OPS: dict[str, Op] = {
    "min": Op("min", lambda x, _: x, "smallest element"),
    "max": Op("max", lambda x, _: x, "largest element"),
    "mean": Op("sum", _mean, "arithmetic mean"),
    "norm": Op("sumsq", lambda x, _: np.sqrt(x), "Euclidean (L2) norm of all elements"),
    "zeros": Op("below", _mean, "fraction of elements whose magnitude is below eps"),
    "nans": Op("nans", lambda x, _: x, "number of NaN elements"),
    "infs": Op("infs", lambda x, _: x, "number of infinite elements"),
    "std": Op("m2", lambda x, shapes: np.sqrt(_mean(x, shapes)), "population standard deviation, as numpy.std"),
    "id": Op("sum", _scalar, "the value of a 0-d tensor; NaN for any other"),
}
"""Ops that can be configured, besides ``histogram``, and ``shape`` and ``dtype``, which are always written."""


def _quantile(q: float) -> Op:
    return Op(HISTOGRAM, lambda x, _: quantile(x, q), f"{q:.0%} of the elements are smaller, to a factor of 2")


OPS |= {name: _quantile(q) for name, q in QUANTILES.items()}
GROUPS = {"quantiles": tuple(QUANTILES)}
"""Names that stand for several ops."""

COUNTS = frozenset({"nans", "infs", "global_nans", "global_infs", "merged"})
"""Columns whose values are whole numbers: ops, and what ``global_stats`` adds."""


def moment_of(op: str) -> str:
    """Return the moment that ``op`` is derived from; of another column its own name."""
    return OPS[op].moment if op in OPS else op


def columns_for(ops: Iterable[str]) -> tuple[str, ...]:
    """Return the moments that ``ops`` need, in the order of ``MOMENTS``, then the histogram. No other is computed."""
    ops = tuple(ops)
    needed = {moment_of(op) for op in ops}
    if any(op in QUANTILES for op in ops):
        needed |= {"min", "max"}  # quantiles are clipped to these
    return tuple(moment for moment in (*MOMENTS, HISTOGRAM) if moment in needed)


def nothing(columns: Sequence[str]) -> Array:
    """Return the row of a tensor without elements."""
    return np.concatenate([np.zeros(BINS) if name == HISTOGRAM else [EMPTY[name]] for name in columns])


def derive(op: str, columns: Mapping[str, Array], shapes: Shapes) -> Array:
    """Derive ``op``, or return the column that a signal adds under that name.

    Raises:
        KeyError: if neither the op's moment nor a column of that name was collected.
    """
    definition = OPS.get(op)
    if definition is None or (op in columns and definition.moment not in columns):
        return columns[op]
    values = definition.derive(columns[definition.moment], shapes)
    if op in QUANTILES and "min" in columns and "max" in columns:
        within = np.fmax(np.fmin(values, columns["max"]), columns["min"])  # these are NaN if an element is
        values = np.where(np.isnan(values), values, within)
    return values


def derive_all(ops: Iterable[str], columns: Mapping[str, Array], shapes: Shapes) -> list[Array]:
    """Derive each of ``ops``, as :func:`derive` does."""
    return [derive(op, columns, shapes) for op in ops]


def moments_of(ops: Mapping[str, Array], counts: Array) -> dict[str, Array]:
    """Return the moments that ``ops`` were derived from, of tensors with ``counts`` elements: the inverse of
    :func:`derive`.

    ``mean`` and ``id`` come from the same moment: the first of them is used. ``m2`` needs ``mean``. Histograms cannot
    be recovered from quantiles.
    """
    ops = {op: values for op, values in ops.items() if op not in QUANTILES}
    undone: dict[str, Callable[[Array], Array]] = {
        "mean": lambda x: x * counts,
        "zeros": lambda x: x * counts,
        "norm": np.square,
        "std": lambda x: np.square(x) * counts,
    }
    needed = columns_for(op for op in ops if op != "std" or "mean" in ops)
    moments: dict[str, Array] = {}
    with np.errstate(invalid="ignore", over="ignore"):
        for op, values in ops.items():
            moment = OPS[op].moment
            undo = undone.get(op)
            total = values if undo is None else undo(values)
            moments.setdefault(moment, np.where(counts > 0, total, EMPTY[moment]))
    return {name: moments[name] for name in needed}


def repeated(row: Mapping[str, Any], times: int) -> dict[str, Any]:
    """Return the moments of ``times`` copies of a tensor with the moments ``row``."""
    return {name: value if name in ("min", "max") else value * times for name, value in row.items()}


def merge(shards: Sequence[Mapping[str, float]], counts: Sequence[int]) -> dict[str, float]:
    """Merge the moments of disjoint shards into those of the whole tensor; exact up to rounding.

    ``m2`` follows Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances"
    (1979), and needs ``sum`` too.
    """
    full = [(shard, count) for shard, count in zip(shards, counts, strict=True) if count]
    merged = {name: _merged(name, [shard[name] for shard, _ in full]) for name in shards[0]}
    if "m2" in merged and full:
        mean = merged["sum"] / sum(counts)
        apart = [(shard["sum"] / count - mean, count) for shard, count in full]
        merged["m2"] += sum(n * distance * distance for distance, n in apart)  # where ** 2 would raise OverflowError
    return merged


def merge_columns(
    columns: Mapping[str, Array], counts: Array, wholes: npt.NDArray[np.int64], number: int
) -> dict[str, Array]:
    """Merge shards as :func:`merge` does, for many tensors at once.

    Args:
        columns: moments of every shard.
        counts: number of elements of each shard.
        wholes: index of the tensor that each shard is a part of, from 0 to ``number - 1``.

    Returns:
        Moments of every tensor; ``m2`` only with ``sum``, which it needs.
    """
    full = counts > 0
    wholes, counts = wholes[full], counts[full]
    columns = {name: values[full] for name, values in columns.items()}
    total = np.bincount(wholes, counts, number)
    merged = {name: _merged_column(name, values, wholes, number) for name, values in columns.items()}
    if "m2" in merged and "sum" not in merged:
        del merged["m2"]
    elif "m2" in merged:
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            apart = columns["sum"] / counts - (merged["sum"] / total)[wholes]
            merged["m2"] = merged["m2"] + np.bincount(wholes, counts * apart * apart, number)
    return merged


def _merged_column(name: str, values: Array, wholes: npt.NDArray[np.int64], number: int) -> Array:
    if name == HISTOGRAM:
        summed = np.zeros((number, BINS))
        np.add.at(summed, wholes, values)
        return summed
    if name not in ("min", "max"):
        return np.bincount(wholes, values, number).astype(np.float64)
    merged = np.full(number, np.inf if name == "min" else -np.inf)
    with np.errstate(invalid="ignore"):
        (np.minimum if name == "min" else np.maximum).at(merged, wholes, values)
    merged[np.bincount(wholes, minlength=number) == 0] = EMPTY[name]
    return merged


def _merged(name: str, values: list[float]) -> float:
    if not values:
        return EMPTY[name]
    if name in ("min", "max"):
        extreme = min(values) if name == "min" else max(values)
        return math.nan if any(value != value for value in values) else extreme  # noqa: PLR0124 - NaN compares so
    return float(sum(values))
