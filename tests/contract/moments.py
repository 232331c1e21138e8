"""Contents, definitions and the comparison for the contract of moments."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import pytest

from probe.core.backend.numpy_moments import BLOCK, RUN, SMALL
from probe.core.moments import MOMENTS
from tests.contract.backends import INTEGERS, Backend, Elements, Tensor

NAN, INF = math.nan, math.inf
EPS = 1e-8
COLUMNS = tuple(MOMENTS)
SHORT = 1 << 15
"""Up to which torch's host reduction takes one dot product."""
SIZES = (1, 7, SMALL, SMALL + 1, RUN, SHORT + 1, BLOCK, BLOCK + 1, 4 * BLOCK + 777)
"""Those about which reductions on a host change from one way to another."""
KERNEL_SIZES = (1, 7, (1 << 11) - 1, 1 << 11, (1 << 13) + 1, 5 * (1 << 13) + 777)
"""Those about which lanes and chunks of a kernel end."""
DEVICE_SIZES = (1, 7, SMALL + 1, 4 * BLOCK + 777)
"""A reduction on a device has one way for all."""
NARROW = ("float16", "float8_e4m3fn", "float8_e5m2")
"""Floating point that does not reach 1e25."""


def normal(size: int, seed: int = 0) -> Elements:
    """Random elements in float64, the same every time."""
    return np.random.default_rng(seed).normal(size=size)


def tight(size: int) -> Elements:
    """A std of 1e-4 of the mean."""
    return 1 + 1e-4 * normal(size)


class Content(NamedTuple):
    """How elements are drawn, and which dtypes can hold them."""

    draw: Callable[[int], Elements]
    holds: Callable[[str], bool]
    odd: tuple[float, ...] = ()
    """The last elements."""


def is_float(dtype: str) -> bool:
    return dtype not in (*INTEGERS, "bool") and not dtype.startswith("complex")


def is_wide(dtype: str) -> bool:
    return is_float(dtype) and dtype not in NARROW


def spoiled(*odd: float) -> Content:
    """Ordinary elements whose last ones are not finite; the one that float8_e4m3fn has is NaN."""
    return Content(
        normal, lambda dtype: is_float(dtype) and (dtype != "float8_e4m3fn" or set(map(str, odd)) == {"nan"}), odd
    )


CONTENTS = {
    "ordinary": Content(normal, lambda dtype: dtype not in INTEGERS),
    "range": Content(normal, lambda dtype: dtype in INTEGERS),
    "zeros": Content(np.zeros, lambda dtype: True),
    "tiny": Content(lambda size: 1e-25 * normal(size), lambda dtype: is_wide(dtype) or dtype.startswith("complex")),
    "huge": Content(lambda size: 1e25 * normal(size), lambda dtype: is_wide(dtype) or dtype.startswith("complex")),
    "tight": Content(tight, is_float),
    "tight and tiny": Content(lambda size: -3e-25 * tight(size), is_wide),
    "tight and huge": Content(lambda size: 1e25 * tight(size), is_wide),
    "nan": spoiled(NAN),
    "inf": spoiled(INF),
    "-inf": spoiled(-INF),
    "nan, inf": spoiled(NAN, INF),
    "inf, -inf": spoiled(INF, -INF),
    "nan, inf, -inf": spoiled(NAN, INF, -INF),
}


def draw(content: str, dtype: str, size: int) -> Elements:
    """Elements in a dtype of NumPy that holds those of ``dtype``."""
    if content == "range":
        bounds = np.iinfo(dtype)
        return np.random.default_rng(1).integers(bounds.min, bounds.max, size, dtype=dtype, endpoint=True)
    x = CONTENTS[content].draw(size)
    if dtype == "bool":
        return x > 0.3
    if dtype.startswith("complex"):
        return x + 1j * np.random.default_rng(2).permutation(x)
    held = CONTENTS[content].odd[-size:]
    x[size - len(held) :] = held
    return x


_known: dict[tuple[str, bytes], dict[str, float]] = {}


def expected(x: Elements) -> dict[str, float]:
    """The moments by their definitions, computed once for the same elements."""
    about = x.dtype.str, hashlib.blake2b(x.tobytes()).digest()
    if about not in _known:
        _known[about] = by_definition(x)
    return _known[about]


def by_definition(x: Elements) -> dict[str, float]:
    """The moments of ``x`` in NumPy's widest type."""
    wide = (np.abs(x) if x.dtype.kind == "c" else x).astype(np.longdouble)
    nans, infs = int(np.isnan(wide).sum()), int(np.isinf(wide).sum())
    row = {"min": wide.min(), "max": wide.max(), "nans": nans, "infs": infs, "below": (np.abs(wide) < EPS).sum()}
    total = wide.sum()
    if nans or infs:
        row |= {"sum": total, "sumsq": NAN if nans else INF, "m2": NAN}
    else:
        row |= {"sum": total, "sumsq": np.square(wide).sum(), "m2": np.square(wide - total / wide.size).sum()}
    return {name: float(value) for name, value in row.items()}


def row_of(backend: Backend, tensor: Tensor, columns: Iterable[str] = COLUMNS, eps: float = EPS) -> dict[str, float]:
    """The moments of one tensor, by name."""
    names = tuple(columns)
    rows = backend.moments([tensor], names, eps)
    assert rows.shape == (1, len(names))
    assert rows.dtype == np.float64
    return dict(zip(names, rows[0].tolist(), strict=True))


def assert_moments(backend: Backend, got: dict[str, float], x: Elements) -> None:
    """Counts and extremes exact, norm and std to 1e-5, mean to 1e-5 of the RMS; of equal elements the std is 0, which
    float32 may miss by its own resolution of them."""
    want = expected(x)
    rms = math.sqrt(want["sumsq"] / x.size)
    extremes = max(1e-6 if x.dtype.kind == "c" else 0.0, backend.resolution)
    for name, value in got.items():
        if name in ("nans", "infs", "below") or not math.isfinite(want[name]):
            assert value == pytest.approx(want[name], rel=0, abs=0, nan_ok=True), name
        elif name in ("min", "max"):
            assert value == pytest.approx(want[name], rel=extremes, abs=0), name
        elif name == "sum":
            assert abs(value - want[name]) <= 1e-5 * rms * x.size
        else:
            room = max(1e-7, backend.resolution) * rms if name == "m2" else 0.0
            root = math.sqrt(x.size)
            got_one, want_one = math.sqrt(value) / root, math.sqrt(want[name]) / root
            assert got_one == pytest.approx(want_one, rel=1e-5, abs=room), name


def check(backend: Backend, tensor: Tensor) -> None:
    """The moments of one tensor are those of its elements."""
    assert_moments(backend, row_of(backend, tensor), backend.elements(tensor))


def possible(dtype: str, size: int, content: str) -> bool:
    """Whether a dtype holds a content, and a tensor is large enough for it."""
    return CONTENTS[content].holds(dtype) and len(CONTENTS[content].odd) <= max(size, 1)


def sizes_for(backend: Backend) -> tuple[int, ...]:
    return {"device": DEVICE_SIZES, "kernels": KERNEL_SIZES}.get(backend.reduction, SIZES)
