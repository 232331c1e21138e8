"""Moments of NumPy arrays of every layout, beside the contract that all reductions keep."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from probe.core.backend.numpy_moments import BLOCK, moments
from tests.contract.backends import BACKENDS, Backend, Elements
from tests.contract.moments import EPS, SIZES, check, normal, row_of


@pytest.fixture(params=[backend for backend in BACKENDS if backend.package == "numpy"], ids=lambda each: each.name)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """Everything holds with the compiled pass and without."""
    backend: Backend = request.param
    backend.prepare(monkeypatch)
    return backend


LAYOUTS: dict[str, Callable[[Elements], Elements]] = {
    "transposed": lambda x: x.reshape(400, 500).T,
    "permuted": lambda x: x.reshape(50, 40, 100).transpose(2, 0, 1),
    "every third": lambda x: x[::3],
    "columns": lambda x: x.reshape(400, 500)[:, 3:490],
    "backwards": lambda x: x[::-1],
    "windows": lambda x: np.lib.stride_tricks.sliding_window_view(x[:9000], 16)[::2],
    "expanded": lambda x: np.broadcast_to(x[:10, np.newaxis], (10, 20_000)),
    "unaligned": lambda x: np.frombuffer(b"." + x.tobytes(), np.uint8)[1:].view(x.dtype),
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype),
    "small backwards": lambda x: x[:3000][::-1],
}


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int32", "complex64"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(backend: Backend, name: str, dtype: str) -> None:
    """Views give the moments of the elements that they show, each once for every place where it is shown."""
    check(backend, LAYOUTS[name]((100 * normal(200_000)).astype(dtype)))


@pytest.mark.parametrize("name", ["transposed", "every third", "columns", "backwards"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
def test_no_copy_of_the_whole(backend: Backend, name: str, dtype: str) -> None:
    """Whatever the dtype and the strides, the memory taken is that of a few blocks."""
    x = LAYOUTS[name](np.zeros(200_000, dtype))
    wide = np.lib.stride_tricks.as_strided(x, (40, *x.shape), (0, *x.strides))
    tracemalloc.start()
    try:
        row_of(backend, wide)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * 8 * BLOCK < wide.size * 8 / 2


def test_a_list_of_layouts_keeps_its_order(backend: Backend) -> None:
    """Arrays of every layout reduced together give one row each, in their order, as alone."""
    x = normal(200_000)
    many = [normal(size) for size in SIZES]
    many[1:1] = [layout(x) for layout in LAYOUTS.values()]
    columns = ("sumsq", "min", "m2")
    rows = moments(many, columns, EPS)
    assert rows.shape == (len(many), 3)
    for row, array in zip(rows, many, strict=True):
        assert row == pytest.approx(moments([array], columns, EPS)[0], rel=1e-12)
