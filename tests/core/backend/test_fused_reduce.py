"""The compiled pass, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from probe.core.backend import fused_reduce
from probe.core.backend.fused_reduce import BFLOAT16, FLOAT16, FLOAT32, FixedArrays, moments
from tests.required import require_compiled

require_compiled()


FIRST = ("min", "max", "sum", "sumsq")
EVERY = (*FIRST, "below", "m2")
SIZES = [1, 2, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 511, 512, 513, 1023, 1024, 1025, 2047, 2048, 2049, 4097, 100_003]
"""Around the ends of vectors, of vectors side by side, and of runs."""


def of(x: Any, kind: int = FLOAT32, columns: tuple[str, ...] = FIRST, eps: float = 0.0) -> list[float] | None:
    rows, valid = moments(columns, [x.ctypes.data], [x.size], kind, eps)
    row: list[float] = rows()[0].tolist()
    return row if valid[0] else None


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_every_element_counts_once(size: int, scale: float) -> None:
    x = (np.random.default_rng(size).normal(0.5, 1, size) * scale).astype(np.float32)
    exact = x.astype(np.float64)
    low, high, total, squares = of(x)  # type: ignore[misc]
    assert (low, high) == (x.min(), x.max())
    assert total == pytest.approx(exact.sum(), abs=1e-6 * np.abs(exact).sum())
    assert squares == pytest.approx(np.square(exact).sum(), rel=1e-6)


@pytest.mark.parametrize("place", [0, 31, 32, 1500, 2049])
def test_extremes_are_found_anywhere(place: int) -> None:
    for value in (7.0, -7.0):
        x = np.linspace(-1, 1, 2050, dtype=np.float32)
        x[place] = value
        low, high, *_ = of(x)  # type: ignore[misc]
        assert (low, high) == (min(x), max(x))


@pytest.mark.parametrize("place", [0, 40, 2047])
@pytest.mark.parametrize("value", [1e30, -3e38])
def test_what_float32_cannot_hold_is_left_to_others(place: int, value: float) -> None:
    x = np.ones(2050, np.float32)
    x[place] = value
    assert of(x) is None


@pytest.mark.parametrize("size", [1, 7, 33, 1025, 100_003])
@pytest.mark.parametrize(("kind", "dtype"), [(FLOAT32, np.float32), (BFLOAT16, np.uint16), (FLOAT16, np.float16)])
@pytest.mark.parametrize("values", [[np.nan], [np.inf], [-np.inf], [np.inf, -np.inf], [np.nan, np.inf, -np.nan]])
def test_what_is_not_finite_is_counted(values: list[float], kind: int, dtype: Any, size: int) -> None:
    """Wherever it is, as often as it is there; also where nothing else is."""
    x = np.linspace(-2, 2, size, dtype=np.float32).astype(np.float16).astype(np.float32)
    places = np.random.default_rng(size).integers(0, size, (len(values), 3))
    for bad in (places, np.resize(places, (len(values), 3 * size)), np.arange(size)):
        for value, where in zip(values, np.resize(bad, (len(values), bad.shape[-1])), strict=True):
            x[where] = value
        held = (x.view(np.uint32) >> 16).astype(np.uint16) if kind == BFLOAT16 else x.astype(dtype)
        wide = (held.astype(np.uint32) << 16).view(np.float32) if kind == BFLOAT16 else held.astype(np.float32)
        with np.errstate(invalid="ignore"):
            exact = [wide.min(), wide.max(), wide.sum(dtype=np.float64), np.square(wide).sum(), wide.mean()]
        counts = [np.count_nonzero(np.isnan(wide)), np.count_nonzero(np.isinf(wide))]
        row = of(held, kind, (*FIRST, "mean", "m2", "below", "nans", "infs"), eps=0.5)
        np.testing.assert_array_equal(row, [*exact, np.nan, np.count_nonzero(np.abs(wide) < 0.5), *counts])


def test_squares_that_lost_their_digits_are_left_to_others() -> None:
    assert of(np.full(5000, 1e-25, np.float32)) is None


def test_zeros_are_exact() -> None:
    assert of(np.zeros(5000, np.float32), columns=fused_reduce.NAMES) == [0.0] * fused_reduce.NUMBERS


def test_rounding_does_not_grow_with_the_length() -> None:
    """A million equal elements: one float32 sum of squares would be off by 1e-4."""
    x = np.full(1_000_003, 1.1, np.float32)
    _, _, total, squares = of(x)  # type: ignore[misc]
    one = float(np.float32(1.1))
    assert total == pytest.approx(one * x.size, rel=1e-6)
    assert squares == pytest.approx(one * one * x.size, rel=1e-6)


@pytest.mark.parametrize("size", [1, 33, 1024, 5001])
def test_bfloat16_is_read_as_it_is(size: int) -> None:
    """Its numbers are those float32 numbers whose lower half is zero."""
    bits = np.random.default_rng(size).normal(0.5, 2, size).astype(np.float32).view(np.uint32) & 0xFFFF0000
    x, halves = bits.view(np.float32), (bits >> 16).astype(np.uint16)
    every: dict[str, Any] = {"eps": 0.3, "columns": EVERY}
    assert of(halves, BFLOAT16, **every) == of(x, **every)


@pytest.mark.parametrize("size", [1, 33, 1024, 5001])
def test_float16_is_read_as_it_is(size: int) -> None:
    """Numbers without an exponent too."""
    halves = (np.random.default_rng(size).normal(0.5, 2, size) * np.where(np.arange(size) % 3, 1, 1e-6)).astype("f2")
    every: dict[str, Any] = {"eps": 0.3, "columns": EVERY}
    assert of(halves, FLOAT16, **every) == of(halves.astype(np.float32), **every)


def test_every_float16_is_read_as_numpy_reads_it() -> None:
    """Alone, where the rest that fills no vector is read, and in vectors."""
    every = np.arange(1 << 16, dtype=np.uint16)
    finite = every[np.isfinite(every.view(np.float16))]
    parts = [*finite[:, None], *np.split(finite, range(64, len(finite), 64))]
    places = [part.ctypes.data for part in parts], [part.size for part in parts]
    rows, valid = moments(("min", "max", "sumsq"), *places, FLOAT16)
    assert 0 not in valid
    numbers = [part.view(np.float16).astype(np.float64) for part in parts]
    assert rows()[:, :2].tolist() == [[wide.min(), wide.max()] for wide in numbers]
    assert rows()[: len(finite), 2].tolist() == [wide[0] ** 2 for wide in numbers[: len(finite)]]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mean", [0.0, 0.5, 1e3])
def test_below_and_deviations(size: int, mean: float) -> None:
    """Counts are exact; the deviations are as exact where the mean is far from zero, or from the first elements."""
    x = np.random.default_rng(size).normal(mean, 1, size).astype(np.float32)
    x[: size // 3] += 5
    row = of(x, eps=mean + 1.5, columns=EVERY)
    assert row is not None
    wide = x.astype(np.float64)
    assert row[4] == np.count_nonzero(np.abs(x) < np.float32(mean + 1.5))
    assert row[5] == pytest.approx(np.square(wide - wide.mean()).sum(), rel=1e-5, abs=1e-12 * np.square(wide).sum())
    assert row[:4] == of(x)


@pytest.mark.parametrize("size", [1, 64, 5000])
def test_equal_elements_do_not_deviate(size: int) -> None:
    assert of(np.full(size, 1.1, np.float32), columns=EVERY)[5] == 0.0  # type: ignore[index]


def test_deviations_that_float32_cannot_hold_are_left_to_others() -> None:
    x = np.full(5000, 1e-3, np.float32)
    x[7] = np.nextafter(x[7], np.float32(1))
    assert of(x) is not None
    x[:] = 1.0
    assert of(x * np.where(np.arange(5000) % 2, 1, -1).astype(np.float32), columns=EVERY)[5] == 5000.0  # type: ignore[index]


def test_many_at_once_are_as_one_by_one() -> None:
    arrays = [np.linspace(-i, 2, i * 700 + 1, dtype=np.float32) for i in range(1, 6)] + [np.full(64, 1e30, np.float32)]
    arrays += [np.array([0.5, -3.0], np.float16)]
    kinds = [FLOAT32] * 6 + [FLOAT16]
    rows, valid = moments(FIRST, [x.ctypes.data for x in arrays], [x.size for x in arrays], kinds)
    assert valid == b"\1\1\1\1\1\0\1"
    others = [0, 1, 2, 3, 4, 6]
    assert rows()[others].tolist() == [of(arrays[i], kinds[i]) for i in others]


def test_what_is_read_again_and_again_is_as_it_is_now() -> None:
    """Each reading is of the numbers of that moment; it stays as it was when they change."""
    x, y = np.arange(5, dtype=np.float32), np.full(64, 2, np.float32)
    arrays = FixedArrays(FIRST, [x.ctypes.data, y.ctypes.data], [x.size, y.size])
    (before, valid), _ = arrays.read(), x.__imul__(2)
    y[:] = 1e30
    after, now_valid = arrays.read()
    assert (valid, now_valid) == (b"\1\1", b"\1\0")
    assert before().tolist() == [[0, 4, 10, 30], [2, 2, 128, 256]]
    assert after()[0].tolist() == [0, 8, 20, 120]
