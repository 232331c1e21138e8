"""Batches for the tests of rules, their moments by plain NumPy."""

from __future__ import annotations

import numpy as np

from probe.core.histogram import counts
from probe.core.moments import EMPTY, columns_for
from probe.core.records import Batch, Key

W = Key("fc.weight")
OPS = ("min", "max", "norm", "mean", "nans", "infs", "std", "id")
EPS = 1e-8
"""Below which an element counts as zero."""


def batch_of(tensors, step=0, ops=OPS, signal="param_updated"):
    """Batch of ``{key: array}``, its moments by plain NumPy."""
    with np.errstate(invalid="ignore"):
        moments = {
            "min": [t.min() if t.size else EMPTY["min"] for t in tensors.values()],
            "max": [t.max() if t.size else EMPTY["max"] for t in tensors.values()],
            "sum": [t.sum() for t in tensors.values()],
            "sumsq": [(t**2).sum() for t in tensors.values()],
            "m2": [t.var() * t.size if t.size else 0.0 for t in tensors.values()],
            "nans": [np.isnan(t).sum() for t in tensors.values()],
            "infs": [np.isinf(t).sum() for t in tensors.values()],
            "below": [(np.abs(t) < EPS).sum() for t in tensors.values()],
            "histogram": [counts(t.astype(np.float64)) for t in tensors.values()],
        }
    count = len(tensors)
    return Batch(
        signal=signal,
        step=step,
        keys=tuple(tensors),
        shapes=tuple(t.shape for t in tensors.values()),
        dtypes=("torch.float32",) * count,
        order=np.arange(count, dtype=np.int64),
        columns={name: np.array(moments[name], dtype=np.float64) for name in columns_for(ops)},
    )


def norms(values, step=0, shape=(4, 4), extra=None, **options):
    """A batch that holds nothing but norms (and ``extra`` columns)."""
    return Batch(
        signal=options.get("signal", "param_updated"),
        step=step,
        keys=tuple(values),
        shapes=(shape,) * len(values),
        dtypes=(options.get("dtype", "torch.float32"),) * len(values),
        order=np.arange(len(values), dtype=np.int64),
        columns={"sumsq": np.array(list(values.values()), dtype=np.float64) ** 2, **(extra or {})},
        micro_stepped=options.get("micro_stepped", False),
    )
