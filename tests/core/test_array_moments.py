"""Moments of NumPy arrays of every dtype, size and layout, against float64 and exact sums."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from probe.core.backend import fused_reduce
from probe.core.backend.numpy_moments import BLOCK, RUN, SMALL, moments
from probe.core.moments import MOMENTS, merge

NAN, INF = math.nan, math.inf
EPS = 1e-8
SIZES = (1, 7, SMALL, SMALL + 1, RUN, BLOCK, BLOCK + 1, 4 * BLOCK + 777)
FLOATS = ("float64", "float32", "float16", "longdouble", ">f4", ">f8")
INTEGERS = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8")
COMPLEX = ("complex64", "complex128")
Elements = np.ndarray[Any, Any]


@pytest.fixture(params=["compiled", "by NumPy"], autouse=True)
def _(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything holds with the compiled pass and without."""
    if request.param == "by NumPy":
        monkeypatch.setattr(fused_reduce, "available", False)
    elif not fused_reduce.available:
        pytest.skip("no C compiler was at hand when probe was installed")


def row_of(array: Elements, columns: Sequence[str] = tuple(MOMENTS), eps: float = EPS) -> dict[str, float]:
    """The moments of one array, by name."""
    rows = moments([array], columns, eps)
    assert rows.shape == (1, len(columns))
    assert rows.dtype == np.float64
    return dict(zip(columns, rows[0].tolist(), strict=True))


def expected(array: Elements, eps: float = EPS) -> dict[str, float]:
    """The same from the elements in float64, with sums that are exact where they are finite."""
    wide = np.abs(array.astype(np.complex128)) if array.dtype.kind == "c" else array.astype(np.float64)
    x = wide.ravel()
    nans, infs = int(np.isnan(x).sum()), int(np.isinf(x).sum())
    row = {"min": x.min(), "max": x.max(), "nans": nans, "infs": infs, "below": int((np.abs(x) < eps).sum())}
    if nans or infs:
        with np.errstate(invalid="ignore"):
            return row | {"sum": x.sum(), "sumsq": NAN if nans else INF, "m2": NAN}
    total = math.fsum(x)
    return row | {"sum": total, "sumsq": math.fsum(x * x), "m2": math.fsum((x - total / x.size) ** 2)}


def check(array: Elements) -> None:
    """Counts and extremes exact, norm and std to 1e-5, mean to 1e-5 of the RMS."""
    got, want = row_of(array), expected(array)
    rms = math.sqrt(want["sumsq"] / array.size)
    for name in MOMENTS:
        if name in ("nans", "infs", "below") or not math.isfinite(want[name]):
            assert got[name] == pytest.approx(want[name], rel=0, abs=0, nan_ok=True), name
        elif name in ("min", "max"):
            rounding = 1e-6 if array.dtype.kind == "c" else 0.0
            assert got[name] == pytest.approx(want[name], rel=rounding, abs=0), name
        elif name == "sum":
            assert abs(got[name] - want[name]) <= 1e-5 * rms * array.size
        else:  # equal elements have a std of 0, which float32 may miss by its own resolution of them
            resolution = 1e-7 * rms if name == "m2" else 0.0
            assert math.sqrt(got[name]) == pytest.approx(math.sqrt(want[name]), rel=1e-5, abs=resolution), name


def normal(size: int, seed: int = 0) -> Elements:
    """Random elements in float64, the same every time."""
    return np.random.default_rng(seed).normal(size=size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_floating_point_of_every_width_and_size(dtype: str, size: int) -> None:
    """Ordinary values of every floating-point dtype, byte order and size give their moments."""
    check(normal(size).astype(dtype))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(dtype: str, size: int) -> None:
    """Integers count by their value, over their whole range."""
    bounds = np.iinfo(dtype)
    check(np.random.default_rng(1).integers(bounds.min, bounds.max, size, dtype=dtype, endpoint=True))


@pytest.mark.parametrize("size", SIZES)
def test_bool(size: int) -> None:
    """True counts as 1, False as 0."""
    check(normal(size) > 0.3)


@pytest.mark.parametrize("magnitude", [1e-25, 1.0, 1e25])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", COMPLEX)
def test_complex_numbers_count_by_magnitude(dtype: str, size: int, magnitude: float) -> None:
    """A complex element is its magnitude."""
    check(((normal(size) + 1j * normal(size, 2)) * magnitude).astype(dtype))


@pytest.mark.parametrize("magnitude", [1e-25, 1e25])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_magnitudes_whose_squares_leave_the_range_of_float32(dtype: str, size: int, magnitude: float) -> None:
    """Elements of 1e-25 and 1e25 have a norm and a std."""
    check((normal(size) * magnitude).astype(dtype))


def test_a_block_out_of_range_beside_ordinary_ones() -> None:
    """Each block is judged by itself."""
    x = normal(5 * BLOCK).astype(np.float32)
    for begin, magnitude in ((0, 1e-25), (2 * BLOCK, 1e25), (3 * BLOCK, 0.0)):
        x[begin : begin + BLOCK] *= np.float32(magnitude)
    check(x)


@pytest.mark.parametrize("mean", [1.0, -3e-25, 1e25])
@pytest.mark.parametrize("size", [7, SMALL, SMALL + 1, 5 * BLOCK - 9])
def test_std_far_below_the_mean(size: int, mean: float) -> None:
    """A std of 1e-4 of the mean is right to five digits."""
    check((mean * (1 + 1e-4 * normal(size))).astype(np.float32))


def test_blocks_with_means_of_their_own() -> None:
    """The spread between blocks counts, however narrow each is."""
    steps = np.repeat([0.0, 3.0, -8.0, 3.001], BLOCK)
    check((steps + 1e-4 * normal(steps.size)).astype(np.float32))


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-20, 7e12])
def test_three_million_equal_elements(value: float) -> None:
    """Long sums of a value that float32 rounds keep their digits."""
    check(np.full(3_000_000, value, dtype=np.float32))


@pytest.mark.parametrize(
    "array",
    [
        np.full(5000, 1.5e38, np.float32),
        np.tile(np.array([1.5e38, -1.5e38], np.float32), 200_000),
        np.full(5000, 1e-40, np.float32),
        np.full(5000, 1e-45, np.float32),
        np.full(200_000, 60_000, np.float16),
    ],
    ids=["sum overflows", "partial sums overflow", "denormal", "least denormal", "float16"],
)
def test_near_the_limits_of_a_dtype(array: Elements) -> None:
    """Sums beyond the range of the dtype, and denormals, are right."""
    check(array)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("odd", [(NAN,), (INF,), (-INF,), (NAN, INF), (INF, -INF), (NAN, INF, -INF)], ids=str)
def test_nan_and_infinity(odd: tuple[float, ...], dtype: str, size: int) -> None:
    """NaN goes through to extremes and sums; Inf makes the sum of squares infinite; both are counted exactly."""
    x = normal(size)
    held = odd[-size:]
    x[-len(held) :] = held
    check(x.astype(dtype))
    check(x[::-1].astype(dtype))
    got = row_of(x.astype(dtype))
    assert (got["nans"], got["infs"]) == (sum(map(math.isnan, held)), sum(map(math.isinf, held)))
    if any(map(math.isnan, held)):
        assert all(math.isnan(got[name]) for name in ("min", "max", "sum", "sumsq", "m2"))
    else:
        assert got["sumsq"] == INF


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, *COMPLEX, "bool"])
@pytest.mark.parametrize("size", SIZES)
def test_zeros(dtype: str, size: int) -> None:
    """Zeros are below eps in every dtype, and everything else about them is 0."""
    assert row_of(np.zeros(size, dtype)) == dict.fromkeys(MOMENTS, 0.0) | {"below": size}


@pytest.mark.parametrize("times", [1, 3000])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_below_counts_magnitudes_under_eps(dtype: str, times: int) -> None:
    """What is at or above eps does not count, nor does NaN."""
    x = np.tile(np.array([0.0, 1e-9, -1e-9, -0.0, 1e-3, -1e-3, 1.0, NAN]).astype(dtype), times)
    for eps, count in ((EPS, 4), (0.0, 0), (0.5, 6)):
        assert row_of(x, ("below",), eps) == {"below": count * times}


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
    "one of each dimension": lambda x: x[:1].reshape(1, 1, 1, 1),
    "0-d": lambda x: x[5:6].reshape(()),
    "small transposed": lambda x: x[:3000].reshape(30, 100).T,
    "small backwards": lambda x: x[:3000][::-1],
}


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int32", "complex64"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str, dtype: str) -> None:
    """Views give the moments of the elements that they show, each once for every place where it is shown."""
    check(LAYOUTS[name]((100 * normal(200_000)).astype(dtype)))


@pytest.mark.parametrize("name", ["transposed", "every third", "columns", "backwards"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
def test_no_copy_of_the_whole(name: str, dtype: str) -> None:
    """Whatever the dtype and the strides, the memory taken is that of a few blocks."""
    x = LAYOUTS[name](np.zeros(200_000, dtype))
    wide = np.lib.stride_tricks.as_strided(x, (40, *x.shape), (0, *x.strides))
    tracemalloc.start()
    try:
        row_of(wide)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * 8 * BLOCK < wide.size * 8 / 2


def test_each_column_alone_and_with_every_other() -> None:
    """Whatever is asked for together, in whatever order, gives the same numbers as alone."""
    for size in (50, SMALL + 1, 2 * BLOCK + 5):
        x = normal(size).astype(np.float32)
        x[0] = 0.0
        alone = {name: row_of(x, (name,))[name] for name in MOMENTS}
        for one in MOMENTS:
            for other in MOMENTS:
                if one != other:
                    assert row_of(x, (one, other)) == {one: alone[one], other: alone[other]}


def test_a_list_keeps_its_order() -> None:
    """Arrays of every dtype, size and layout reduced together give one row each, in their order, as alone."""
    x = normal(200_000)
    many = [normal(size).astype(dtype) for size in SIZES for dtype in ("float32", "float16", "complex64", "int8")]
    many[1:1] = [layout(x) for layout in LAYOUTS.values()]
    columns = ("sumsq", "min", "m2")
    rows = moments(many, columns, EPS)
    assert rows.shape == (len(many), 3)
    for row, array in zip(rows, many, strict=True):
        assert row == pytest.approx(moments([array], columns, EPS)[0], rel=1e-12)


def test_blocks_merge_as_shards_do() -> None:
    """A long array has the moments that core's merge gives for its pieces."""
    x = (5 + 0.01 * normal(3 * BLOCK + 100)).astype(np.float32)
    pieces = np.split(x, [10, BLOCK, 2 * BLOCK + 50])
    merged = merge([row_of(piece) for piece in pieces], [len(piece) for piece in pieces])
    assert row_of(x) == pytest.approx(merged, rel=1e-5)


def test_arrays_are_left_alone() -> None:
    """Reducing writes nothing and warns of nothing."""
    x = np.array([1e30, -1e30, 1e-30, 0.0, INF, NAN] * 20_000, np.float32)
    before = x.tobytes()
    with np.errstate(all="raise"):
        moments([x, x[:60], x[::2]], tuple(MOMENTS), EPS)
    assert x.tobytes() == before
